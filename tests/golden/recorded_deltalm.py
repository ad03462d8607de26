"""The recorded numbers of the original DeltaLM plugin (see README.md beside this file), as our models."""

from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from recorded import load

from s2sft_fairseq.models.deltalm import DeltaLMModel
from s2sft_fairseq.models.deltalm_config import DeltaLMConfig

MODELS = ("base_like", "large_like")
CHECKPOINTS = ("ckpt_exact", "ckpt_larger_vocab_fewer_pos", "ckpt_no_embed_ln")
VOCAB_SIZE, POSITIONS, PAD = 60, 40, 1
ARRAYS, SETTINGS = load("deltalm")


class Task:
    """What a model needs of a task: fairseq's dictionary, with its four symbols first."""

    def __init__(self, size: int = VOCAB_SIZE) -> None:
        self.source_dictionary = self.target_dictionary = Dictionary()
        for number in range(size - len(self.target_dictionary)):
            self.target_dictionary.add_symbol(f"w{number}")


def config(**options: Any) -> DeltaLMConfig:
    return DeltaLMConfig(**{"encoder_attention_heads": 4, "max_positions": POSITIONS, "dropout": 0.0, **options})


def weights(case: str) -> dict[str, torch.Tensor]:
    """The recorded parameters, or the contents of a recorded checkpoint."""
    prefix = f"{case}/weights/"
    return {
        name.removeprefix(prefix): torch.from_numpy(value.copy())
        for name, value in ARRAYS.items()
        if name.startswith(prefix)
    }


def model(case: str) -> DeltaLMModel:
    """A recorded model."""
    options = config(
        encoder_layers=4,
        encoder_embed_dim=32,
        encoder_ffn_embed_dim=64,
        layernorm_embedding="yes" if case == "base_like" else "no",
    )
    built = DeltaLMModel.build_model(options, Task())
    state = weights(case)
    state["decoder.embed_tokens.weight"] = state["encoder.embed_tokens.weight"]
    built.load_state_dict(state)
    return built.eval()


def batch(case: str, side: str) -> dict[str, torch.Tensor]:
    """The recorded arrays of a batch; ``side`` is left or right, where its sources are padded."""
    prefix = f"{case}/src_{side}_pad/"
    return {
        name.removeprefix(prefix): torch.from_numpy(np.asarray(value))
        for name, value in ARRAYS.items()
        if name.startswith(prefix)
    }
