"""The memory of a conversion with XLM-R's vocabulary, on checkpoints of a gigabyte."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "convert_memory.py"


@pytest.mark.slow
@pytest.mark.process
def test_at_most_2_2_times_the_checkpoint():
    done = subprocess.run([sys.executable, str(BENCHMARK)], capture_output=True, text=True, check=True)
    ratios = {
        kind: float(ratio) for kind, ratio in re.findall(r"^(.*): checkpoint .* ratio ([\d.]+)$", done.stdout, re.M)
    }
    assert list(ratios) == ["model.safetensors", "pytorch_model.bin", "model.pt", "float16 model.safetensors"]
    assert max(ratios.values()) <= 2.2, done.stdout
