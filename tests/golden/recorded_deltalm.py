"""The recorded numbers of the original DeltaLM plugin (see README.md in this folder), as our models."""

from typing import Any

import numpy as np
import torch
from fairseq.data import Dictionary
from recorded import load, require

from s2sft_fairseq.models.deltalm import DeltaLMConfig, DeltaLMModel

require("deltalm")
ARRAYS, SETTINGS = load("deltalm")
CASES = SETTINGS["cases"]
MODELS = [case for case, recorded in CASES.items() if "state_dict" in recorded]
CHECKPOINTS = [case for case, recorded in CASES.items() if "checkpoint_keys" in recorded]
VOCAB_SIZE, POSITIONS, PAD = SETTINGS["dims"]["V"], SETTINGS["dims"]["MAXP"], SETTINGS["special_ids"]["pad"]


class Task:
    """The part of a task that a model needs: fairseq's dictionary, with its four symbols first."""

    def __init__(self, size: int = VOCAB_SIZE) -> None:
        self.source_dictionary = self.target_dictionary = Dictionary()
        for number in range(size - len(self.target_dictionary)):
            self.target_dictionary.add_symbol(f"w{number}")


def config(case: str, **options: Any) -> DeltaLMConfig:
    """Return the options of a recorded model that do not follow from its checkpoint."""
    recorded = CASES[case]["args"]
    sizes = {"encoder_attention_heads": recorded["encoder_attention_heads"]}
    return DeltaLMConfig(**{**sizes, "max_positions": recorded["max_source_positions"], "dropout": 0.0, **options})


def weights(case: str) -> dict[str, torch.Tensor]:
    """Return the recorded parameters, or the contents of a recorded checkpoint."""
    prefix = f"{case}/weights/"
    return {
        name.removeprefix(prefix): torch.from_numpy(value.copy())
        for name, value in ARRAYS.items()
        if name.startswith(prefix)
    }


def model(case: str) -> DeltaLMModel:
    """Return a recorded model."""
    recorded = CASES[case]["args"]
    sizes = ("encoder_layers", "decoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim")
    embedding_norm = "yes" if recorded["layernorm_embedding"] else "no"
    options = config(case, **{name: recorded[name] for name in sizes}, layernorm_embedding=embedding_norm)
    built = DeltaLMModel.build_model(options, Task())
    state = weights(case)
    state["decoder.embed_tokens.weight"] = state["encoder.embed_tokens.weight"]
    built.load_state_dict(state)
    return built.eval()


def batch(case: str, side: str) -> dict[str, torch.Tensor]:
    """Return the recorded arrays of a batch; ``side`` is left or right, where its sources are padded."""
    prefix = f"{case}/src_{side}_pad/"
    return {
        name.removeprefix(prefix): torch.from_numpy(np.asarray(value))
        for name, value in ARRAYS.items()
        if name.startswith(prefix)
    }
