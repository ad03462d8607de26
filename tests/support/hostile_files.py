"""Files of weights for attacks, and what they cost."""

import json
import resource
from pathlib import Path

import torch

BERT = {"model_type": "bert", "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
BERT |= {"intermediate_size": 4, "max_position_embeddings": 4}


def save_weights(folder: Path, state: object, **config: object) -> Path:
    """Write a file of weights and its configuration."""
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps({**BERT, **config}))
    return folder / "pytorch_model.bin"


def most_memory() -> int:
    """Return the most memory that this process has had so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
