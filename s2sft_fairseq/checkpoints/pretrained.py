"""The folder of a converted encoder: what ``s2sft convert`` writes and ``--pretrained`` reads.

===============  ====================================================================================================
``model.pt``     a fairseq checkpoint: the weights by the names of the parameters of the `unilm` model, and its options
``config.json``  what `PretrainedEncoder` holds, and the names of the files that belong to the folder
``dict.txt``     the fairseq dictionary; symbol *i* is row *i* of the embedding
others           the files of the tokenizer, as they came, and ``added_tokens.json``
===============  ====================================================================================================
"""

import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.checkpoints.finite_weights import check_finite
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.data.dictionary import DICTIONARY
from s2sft_fairseq.errors import UserError

logger = logging.getLogger(__name__)

MODEL, CONFIG = "model.pt", "config.json"


@dataclass(frozen=True)
class PretrainedEncoder:
    """A converted encoder on disk."""

    folder: Path
    sizes: dict[str, Any]
    """By the names of `UnilmConfig`."""
    vocab_size: int
    newly_initialized: list[str]
    """Parameters that the encoder lacks."""
    layout: dict[str, Any] = field(default_factory=dict)
    """The layout of fine-tuning that it suggests, by the names of the task's options."""
    family: str = ""
    files: list[str] = field(default_factory=list)
    """Names of the files that were written with it."""
    left_out: tuple[str, ...] = ()
    """Parameters of the encoder that the model has no use for."""

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "PretrainedEncoder":
        """Read the description of a converted encoder.

        Raises:
            UserError: naming every file that is missing, or what is wrong with ``config.json``.
        """
        folder = Path(folder)
        missing = [name for name in (MODEL, CONFIG, DICTIONARY) if not (folder / name).is_file()]
        if missing:
            raise UserError(
                f"--pretrained {folder} must be a folder written by 's2sft convert', but lacks {', '.join(missing)}"
            )
        try:
            described = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            return cls(
                folder,
                described["sizes"],
                described["vocab_size"],
                described["newly_initialized"],
                described.get("layout", {}),
                described.get("family", ""),
                described.get("files", []),
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{folder / CONFIG} was not written by 's2sft convert': {error!r}") from None

    def with_roles(self, num_roles: int, num_turns: int) -> "PretrainedEncoder":
        """Return the encoder with role and turn embeddings in place of segments, newly initialised if it has none."""
        if self.sizes.get("num_roles"):
            return self
        return replace(
            self,
            sizes={**self.sizes, "num_segments": 0, "num_roles": num_roles, "num_turns": num_turns},
            newly_initialized=[*self.newly_initialized, "embeddings.roles.weight", "embeddings.turns.weight"],
            left_out=("embeddings.segments.weight",),
        )

    def load_into(self, model: nn.Module) -> None:
        """Load the weights; what the encoder lacks keeps its initial values, and is named in the log.

        Raises:
            UserError: if the dictionary or the parameters do not fit or are not finite, naming all that are not.
        """
        weights: dict[str, Tensor] = load_checkpoint(self.folder / MODEL)["model"]
        check_finite(self.folder / MODEL, weights)
        left_out = [name for name in self.left_out if weights.pop(name, None) is not None]
        own = model.state_dict()
        known = set(self.newly_initialized)
        model.load_state_dict({**{name: own[name] for name in own.keys() & known}, **weights})
        logger.info(f"loaded {len(weights)} of {len(own)} parameters from {self.folder}")
        if left_out:
            logger.info(f"left out, for the model has no such part: {', '.join(left_out)}")
        if known:
            logger.info(f"newly initialised, for the pretrained encoder lacks them: {', '.join(sorted(known))}")


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file whole or not at all: under a temporary name first, so that an older one is never lost."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_pretrained(folder: Path, conversion: Conversion, files: Sequence[str] = ()) -> None:
    """Write ``model.pt`` and ``config.json``; ``files`` are the names of the others."""
    described = {
        "family": conversion.family,
        "sizes": conversion.sizes,
        "vocab_size": len(conversion.weights["embeddings.tokens.weight"]),
        "newly_initialized": conversion.missing,
        "layout": conversion.layout,
        "files": sorted({MODEL, CONFIG, DICTIONARY, *files}),
    }
    text = json.dumps(described, indent=2) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / MODEL, lambda path: torch.save(_fairseq_checkpoint(conversion), path))
    write_whole(folder / CONFIG, lambda path: path.write_text(text, encoding="utf-8"))


def _fairseq_checkpoint(conversion: Conversion) -> dict[str, Any]:
    """Return what fairseq expects of a checkpoint, as one of a training that made no update yet.

    Without a method in its layout it is a pretrained encoder, and generating from it is refused for want of one.
    """
    history = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}
    return {
        "args": None,
        "cfg": {
            "_name": None,
            "model": {"_name": "unilm", **conversion.sizes},
            "task": {"_name": "unilm_seq2seq", "data": ""},
        },
        "model": conversion.weights,
        "criterion": None,
        "optimizer_history": [history],
        "task_state": {"layout": conversion.layout} if conversion.finetuned else {},
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
        "last_optimizer_state": None,
    }
