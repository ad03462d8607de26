"""What a `deltalm` model starts from: a converted encoder, an official checkpoint, or one of an earlier training."""

import logging
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from s2sft_fairseq.checkpoints.conversion import Weights
from s2sft_fairseq.checkpoints.deltalm import (
    COPIES,
    POSITIONS,
    TABLES,
    TOKENS,
    encoder_weights,
    interleave,
    official_weights,
    sizes_of,
    tie,
)
from s2sft_fairseq.checkpoints.finite_weights import check_finite
from s2sft_fairseq.checkpoints.pretrained import MODEL, PretrainedEncoder
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.data.dictionary import DICTIONARY, PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.unilm_config import SIZES as UNILM_SIZES

logger = logging.getLogger(__name__)

# What an encoder must be like: that of fairseq's Transformer. The values are those of BERT base.
_REQUIRED = (
    *("embedding_dim", "layer_norm_position", "feed_forward", "biases", "rotary_base", "local_attention_window"),
    *("relative_position_bins", "num_roles"),
)
_FROM_ENCODER = (
    *("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads"),
    *("layer_norm_eps", "activation_fn"),
)
_FAIRSEQ_PAD = 1
_VERSIONS = ("encoder.version", "decoder.version")  # buffers in which fairseq counts changes to its code


@dataclass(frozen=True)
class Start:
    """The parameters to start from, and what they tell of the sizes."""

    path: Path
    weights: Weights
    """Of the model by its own names, the token embedding once; or of an encoder alone, see ``is_encoder``."""
    known: dict[str, Any]
    """Sizes by the names of `DeltaLMConfig`."""
    suggested: dict[str, Any]
    """Further ones, which options may contradict."""
    is_encoder: bool = False
    """Whether the weights are those of an encoder by fairseq's names, from which the decoder starts too."""

    def load_into(self, model: nn.Module, decoder_layers: int) -> None:
        """Copy the parameters into a model.

        Tables of another number of rows than the model's have their first rows in common with it; of more, the others
        are left out, of less, the model's others keep their initial values; the log tells which.

        Raises:
            UserError: naming every parameter that is missing, unknown or of another shape.
        """
        weights = interleave(self.weights, decoder_layers) if self.is_encoder else self.weights
        own = {
            name: value for name, value in model.state_dict().items() if name not in COPIES and "version" not in name
        }
        problems = [f"{name} is missing" for name in own.keys() - weights.keys()]
        problems += [f"{name} is unknown" for name in weights.keys() - own.keys()]
        problems += [
            f"{name} must have the shape {tuple(own[name].shape)}, but has {tuple(weights[name].shape)}"
            for name in own.keys() & weights.keys()
            if _rowless(name, own[name]) != _rowless(name, weights[name])
        ]
        if problems:
            raise UserError.of(sorted(problems), f"{self.path} does not fit the model:")
        with torch.no_grad():
            for name, value in weights.items():
                rows = min(len(own[name]), len(value))
                own[name][:rows].copy_(value[:rows])
                _report_rows(name, len(own[name]), len(value))
        logger.info(f"loaded all {len(own)} parameters from {self.path}")


def open_start(path: str, dictionary: Dictionary) -> Start:
    """Read what ``--pretrained`` names.

    Args:
        path: the folder of a converted encoder, or the file of a checkpoint.
        dictionary: of the data.

    Raises:
        UserError: if it cannot be read, is nothing that the model can start from, or does not fit the dictionary.
    """
    return _open_folder(path, dictionary) if Path(path).is_dir() else _open_file(Path(path), dictionary)


def _open_folder(path: str, dictionary: Dictionary) -> Start:
    encoder = PretrainedEncoder.open(path)
    sizes = {**UNILM_SIZES, **encoder.sizes}
    problems = [
        f"an encoder with {name} {UNILM_SIZES[name]} is needed, but that of {path} has {sizes[name]}"
        for name in _REQUIRED
        if sizes[name] != UNILM_SIZES[name]
    ]
    problems += _dictionary_problems(encoder, dictionary)
    if problems:
        raise UserError.of(problems)
    loaded = load_checkpoint(encoder.folder / MODEL, lazily=True)["model"]
    check_finite(encoder.folder / MODEL, loaded)
    weights = encoder_weights(loaded, dictionary.pad())
    known = {name: sizes[name] for name in _FROM_ENCODER}
    suggested = {"max_positions": sizes["max_positions"]}
    return Start(encoder.folder, weights, {**known, "layernorm_embedding": "yes"}, suggested, is_encoder=True)


def _dictionary_problems(encoder: PretrainedEncoder, dictionary: Dictionary) -> list[str]:
    """Compare the symbols of the data with those of the encoder, as far as both go."""
    symbols = PretrainedDictionary.load(str(encoder.folder / DICTIONARY)).symbols
    for number, (needed, found) in enumerate(zip(symbols, dictionary.symbols, strict=False)):
        if needed != found:
            return [
                f"the dictionary must begin as {encoder.folder / DICTIONARY} does, but its symbol {number} is {found} "
                f"in place of {needed}: binarize the data with that file and s2sft preprocess, and read it with a task "
                "of this plugin (fairseq's own tasks put four symbols of their own before those of BERT)"
            ]
    return []


def _open_file(path: Path, dictionary: Dictionary) -> Start:
    state = load_checkpoint(path, lazily=True)
    options: Mapping[str, Any] = {}
    if isinstance(state.get("weights"), dict):
        weights = official_weights(state["weights"])
    elif isinstance(state.get("model"), dict):
        weights = dict(state["model"])
        options = _model_options(state)
    else:
        raise UserError(
            f"--pretrained {path} must hold 'weights', as DeltaLM's own checkpoints do, or 'model', as fairseq's do, "
            f"but holds {', '.join(map(str, state)) or 'nothing'}"
        )
    check_finite(path, weights)
    weights = {name: value for name, value in weights.items() if name not in _VERSIONS}
    tied = tie(weights)
    try:
        known = sizes_of(weights)
        positions = max(len(weights[name]) for name in POSITIONS) - dictionary.pad() - 1
    except KeyError as error:
        raise UserError(f"--pretrained {path} is no DeltaLM checkpoint: it lacks {error.args[0]}") from None
    if not options and dictionary.pad() != _FAIRSEQ_PAD:
        raise UserError(
            f"{path} needs a dictionary whose padding is symbol {_FAIRSEQ_PAD}, as fairseq's, but it is symbol "
            f"{dictionary.pad()}"
        )
    if not tied:
        logger.warning(f"{path}: the token embeddings of source and target differ; both become the target's here")
    suggested = {"max_positions": positions}
    for name in ("encoder_attention_heads", "layer_norm_eps", "activation_fn"):
        if (value := options.get(name)) is not None:
            suggested[name] = value
    return Start(path, weights, known, suggested)


def _model_options(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the model that a fairseq checkpoint holds."""
    options = (state.get("cfg") or {}).get("model") or state.get("args") or {}
    return vars(options) if isinstance(options, Namespace) else dict(options)


def _rowless(name: str, value: Tensor) -> tuple[int, ...]:
    """Return the shape, for a table without its rows."""
    return tuple(value.shape[1:] if name in TABLES else value.shape)


def _report_rows(name: str, own: int, given: int) -> None:
    kind = "symbols" if name == TOKENS else f"rows of {name}"
    if own > given:
        logger.info(f"the last {own - given:,} of {own:,} {kind} are new and keep their initial values")
    elif own < given:
        logger.info(f"the last {given - own:,} of {given:,} {kind} are left out: the model has {own:,}")
