"""Model folders of tiny random generators, for exports."""

from pathlib import Path
from typing import Any

import numpy as np
from tiny import ENCODERS, VOCAB_SIZE, tiny_dictionary, tiny_model, words

from s2sft_fairseq.checkpoints.model_folder import write_model
from s2sft_fairseq.models.unilm import UnilmModel

METHODS = ("causal", "masked", "pseudo_masked", "infilling")
TEXTS = ("w5 w6 w7 w8 w9 w10", "w11", "w12 w13 w14 [SEP] w15 w16", "w20 w21 w22 w23 w24 w25 w26 w27 w28 w29 w30")
ROLES = {"num_segments": 0, "num_roles": 3, "num_turns": 4}
"""Options of a model for dialogues."""


def some_texts(count: int) -> list[str]:
    """Return random texts of 1 to 12 words."""
    rng = np.random.default_rng(5)
    return [" ".join(f"w{number}" for number in words(rng, rng.integers(1, 13))) for _ in range(count)]


def write_model_folder(
    folder: Path,
    kind: str = "absolute",
    method: str = "pseudo_masked",
    *,
    layout: dict[str, Any] | None = None,
    search: dict[str, Any] | None = None,
    **sizes: Any,
) -> UnilmModel:
    """Write the folder of a tiny random model with the words ``w5`` to ``w49``; return the model."""
    model = tiny_model(1, **{**ENCODERS[kind], **sizes})
    symbols = tiny_dictionary().symbols
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("".join(f"{symbol}\n" for symbol in symbols))
    limits = {"finetune_method": method, "max_source_positions": 24, "max_target_positions": 10}
    state = {
        "model": model.state_dict(),
        "cfg": {"model": {**vars(model.cfg), "_name": "unilm"}, "task": {"_name": "unilm_seq2seq"}},
        "task_state": {"layout": {**limits, **(layout or {})}, "num_symbols": VOCAB_SIZE},
    }
    write_model(state, folder, search or {}, {})
    (folder / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in symbols))
    return model
