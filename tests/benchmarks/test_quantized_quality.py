"""The script on a tiny model: the contents of its rows and its JSON."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from s2sft_fairseq.modules.cpu_linear import can_quantize

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "quantized_quality.py"


@pytest.mark.skipif(not can_quantize(torch.ones(1, 1)), reason="this CPU has no 8-bit kernels")
@pytest.mark.process
def test_a_row_for_each_setting(tiny_training, tiny_data, tiny_corpus, tmp_path):
    output = tmp_path / "quality.json"
    symbols = [line.split()[0] for line in (tiny_corpus / "dict.txt").read_text().splitlines()]
    (tmp_path / "vocab.txt").write_text("".join(f"{symbol}\n" for symbol in symbols))
    options = ("--path", tiny_training.checkpoint, "--data", tiny_data, "--tokenizer-dir", tmp_path)
    command = [sys.executable, SCRIPT, *options, "--sentences", "6", "--batch-size", "4", "--beam", "2"]
    done = subprocess.run([*command, "--output", output], capture_output=True, text=True, check=True)
    rows = done.stdout.splitlines()
    assert rows[0].startswith("6 sentences, beam 2")
    assert [row[:10].strip() for row in rows[2:]] == ["as loaded", "packed", "bf16", "int8"]
    results = json.loads(output.read_text())["results"]
    for name in ("as loaded", "packed"):
        assert results[name]["same"] == 100
        assert results[name]["absolute_score_difference"] < 1e-5
    assert all(results[name]["absolute_score_difference"] > 1e-5 for name in ("bf16", "int8"))
    assert results["packed"]["rouge1"] == results["as loaded"]["rouge1"]
