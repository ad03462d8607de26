"""Files of weights for attacks, and what they cost."""

import ctypes
import json
import re
import resource
from contextlib import suppress
from pathlib import Path

import torch

BERT = {"model_type": "bert", "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
BERT |= {"intermediate_size": 4, "max_position_embeddings": 4}


def save_weights(folder: Path, state: object, **config: object) -> Path:
    """Write a file of weights and its configuration."""
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps({**BERT, **config}))
    return folder / "pytorch_model.bin"


def forget_peak() -> int:
    """Measure the peak memory of this process from now on, where Linux allows it; return the memory now, in bytes."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # else freed memory, which is used again, hides as much growth
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return most_memory()


def most_memory() -> int:
    """Return the most memory that this process has had since `forget_peak`, in bytes."""
    status = Path("/proc/self/status")
    found = re.search(r"^VmHWM:\s+(\d+) kB$", status.read_text(), re.M) if status.exists() else None
    return (int(found[1]) if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss) * 1024
