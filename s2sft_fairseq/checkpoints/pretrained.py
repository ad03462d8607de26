"""The folder of a converted encoder or DeltaLM, which ``s2sft convert`` writes and ``--pretrained`` reads.

===============  ====================================================================================================
``model.pt``     a fairseq checkpoint: the weights by the names of the parameters of the model, and its options
``config.json``  the fields of `PretrainedEncoder`, among them the names of the files of the folder
``dict.txt``     the fairseq dictionary; symbol *i* is row *i* of the embedding
others           the files of the tokenizer, unchanged, and ``added_tokens.json``
===============  ====================================================================================================
"""

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.checkpoints.finite_weights import check_finite
from s2sft_fairseq.checkpoints.paddle_files import paddle_model
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checkpoints.saving import save_checkpoint
from s2sft_fairseq.checkpoints.state_checks import check_sizes, check_tensors, layout_problems
from s2sft_fairseq.checksums import check_files
from s2sft_fairseq.data.bounded_files import read_json_object
from s2sft_fairseq.data.dictionary import DICTIONARY, symbols_fingerprint
from s2sft_fairseq.errors import UserError, shown
from s2sft_fairseq.files import write_whole
from s2sft_fairseq.progress import step
from s2sft_fairseq.received import check_parts

logger = logging.getLogger(__name__)

MODEL, CONFIG = "model.pt", "config.json"


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, str) for each in value)


# The fields of config.json: for each the kind of its value and a check; and the defaults of those that may be missing.
_KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "sizes": ("an object", lambda value: isinstance(value, dict)),
    "vocab_size": ("a whole number above 0", lambda value: type(value) is int and value > 0),
    "newly_initialized": ("a list of texts", _is_list_of_texts),
    "layout": ("an object", lambda value: isinstance(value, dict)),
    "family": ("a text", lambda value: isinstance(value, str)),
    "files": ("a list of texts", _is_list_of_texts),
    "model": ("a text", lambda value: isinstance(value, str)),
}
_DESCRIBED: Mapping[str, Any] = {
    **dict.fromkeys(("sizes", "vocab_size", "newly_initialized")),
    **{"layout": {}, "family": "", "files": [], "model": "unilm"},
}


@dataclass(frozen=True)
class PretrainedEncoder:
    """A converted encoder or encoder-decoder in a folder, or the encoder in a checkpoint of a training."""

    path: Path
    """The folder, or the checkpoint file."""
    sizes: dict[str, Any]
    """The sizes by the names of `UnilmConfig`, or of `DeltaLMConfig`."""
    vocab_size: int
    newly_initialized: list[str]
    """Parameters that the encoder lacks."""
    layout: dict[str, Any] = field(default_factory=dict)
    """The suggested layout of fine-tuning, by the names of the task's options."""
    family: str = ""
    files: list[str] = field(default_factory=list)
    """Names of the files of the folder."""
    model: str = "unilm"
    """The name of the registered model, ``unilm`` or ``deltalm``."""
    left_out: tuple[str, ...] = ()
    """Parameters of the encoder that the model does not use."""
    symbols: str = ""
    """Fingerprint of the dictionary of a checkpoint file; empty if unknown, and for a folder."""
    weights: Mapping[str, Tensor] | None = field(default=None, compare=False, repr=False)
    """The weights of a checkpoint file; None for a folder."""

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, checked: bool = True) -> "PretrainedEncoder":
        """Read the description of a converted encoder.

        Args:
            folder: the folder.
            checked: refuse parts that are no regular files of the folder, and compare the checksums.

        Raises:
            UserError: naming every missing file, or all errors in ``config.json``; or if a checksum differs.
        """
        folder = Path(folder)
        if checked:
            check_parts(folder / name for name in (MODEL, CONFIG, DICTIONARY))
        missing = [name for name in (MODEL, CONFIG, DICTIONARY) if not (folder / name).is_file()]
        if missing and (what := paddle_model(folder)):
            raise UserError(f"--pretrained {folder} must be a folder written by 's2sft convert', but holds {what}")
        if missing:
            raise UserError(
                f"--pretrained {folder} must be a folder written by 's2sft convert', but lacks {', '.join(missing)}"
            )
        if checked:
            check_files(folder / CONFIG, folder / DICTIONARY)
        what = f"{folder / CONFIG} was not written by 's2sft convert'"
        try:
            described = {**_DESCRIBED, **read_json_object(folder / CONFIG)}
        except UserError as error:
            raise UserError(f"{what}: {error}") from None
        problems = [
            f"{name} must be {kind}, but is {shown(described[name])}"
            for name, (kind, is_right) in _KINDS.items()
            if not is_right(described[name])
        ]
        problems += layout_problems(described["layout"], "layout")
        if problems:
            raise UserError(f"{what}: {'; '.join(problems)}")
        check_sizes(folder / MODEL, described["sizes"], f"{folder / CONFIG}: sizes")
        return cls(folder, **{name: described[name] for name in _KINDS})

    def with_roles(self, num_roles: int, num_turns: int) -> "PretrainedEncoder":
        """Return the encoder with role and turn embeddings in place of segments; if it has none, they are new."""
        if self.sizes.get("num_roles"):
            return self
        return replace(
            self,
            sizes={**self.sizes, "num_segments": 0, "num_roles": num_roles, "num_turns": num_turns},
            newly_initialized=[*self.newly_initialized, "embeddings.roles.weight", "embeddings.turns.weight"],
            left_out=("embeddings.segments.weight",),
        )

    def check_symbols(self, symbols: Sequence[str]) -> None:
        """Compare the symbols of the data with those of a checkpoint, if its fingerprint is known.

        Raises:
            UserError: if their number is the same, but symbols or their order differ. Loading the weights reports a
                different number.
        """
        if self.symbols and len(symbols) == self.vocab_size and symbols_fingerprint(symbols) != self.symbols:
            raise UserError(
                f"--pretrained {self.path} was trained with other symbols than those of the data, or with the same in "
                "another order: binarize the data with the dict.txt of its training"
            )

    def read_weights(self) -> dict[str, Tensor]:
        """Return the parameters by name.

        Raises:
            UserError: if their file is missing or damaged, or they are not finite tensors.
        """
        file = self.path / MODEL if self.weights is None else self.path
        weights = load_checkpoint(file, lazily=True).get("model") if self.weights is None else self.weights
        if not isinstance(weights, Mapping):
            raise UserError(f"{file} must hold the parameters as 'model', but was not written by 's2sft convert'")
        check_tensors(weights, f"--pretrained {file}")
        check_finite(file, weights)
        return dict(weights)

    def load_into(self, model: nn.Module) -> None:
        """Load the weights; parameters that the encoder lacks keep their initial values and are logged.

        Raises:
            UserError: if the file is missing or damaged, or naming the dictionary and all parameters that do not fit or
                are not finite.
        """
        weights = self.read_weights()
        left_out = [name for name in self.left_out if weights.pop(name, None) is not None]
        own = model.state_dict()
        known = set(self.newly_initialized)
        model.load_state_dict({**{name: own[name] for name in own.keys() & known}, **weights})
        logger.info(f"loaded {len(weights)} of {len(own)} parameters from {self.path}")
        if left_out:
            logger.info(f"left out, for the model has no such part: {', '.join(left_out)}")
        if known:
            logger.info(f"newly initialised, for the pretrained encoder lacks them: {', '.join(sorted(known))}")


def write_pretrained(folder: Path, conversion: Conversion, files: Sequence[str] = ()) -> None:
    """Write ``model.pt`` and ``config.json``; ``files`` are the names of the other files of the folder."""
    described = {
        "family": conversion.family,
        "model": conversion.model,
        "sizes": conversion.sizes,
        "vocab_size": len(conversion.weights[conversion.tokens]),
        "newly_initialized": conversion.missing,
        "layout": conversion.layout,
        "files": sorted({MODEL, CONFIG, DICTIONARY, *files}),
    }
    text = json.dumps(described, indent=2) + "\n"
    with step(f"write {MODEL}"):
        save_checkpoint(_fairseq_checkpoint(conversion), folder / MODEL)
    write_whole(folder / CONFIG, lambda path: path.write_text(text, encoding="utf-8"))


def _fairseq_checkpoint(conversion: Conversion) -> dict[str, Any]:
    """Return the fairseq checkpoint of a training without updates.

    Its task state has a layout only if the model is fine-tuned already; otherwise it is a pretrained encoder, from
    which the task refuses to generate.
    """
    history = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}
    return {
        "args": None,
        "cfg": {
            "_name": None,
            "model": {"_name": conversion.model, **conversion.sizes},
            "task": {"_name": f"{conversion.model}_seq2seq", "data": ""},
        },
        "model": conversion.weights,
        "criterion": None,
        "optimizer_history": [history],
        "task_state": {"layout": conversion.layout} if conversion.finetuned else {},
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
        "last_optimizer_state": None,
    }
