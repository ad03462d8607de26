"""Start a `deltalm` model from a converted encoder or DeltaLM, an official checkpoint, or a trained checkpoint."""

import logging
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import nn

from s2sft_fairseq.checkpoints.conversion import Weights
from s2sft_fairseq.checkpoints.deltalm import (
    TOKENS,
    encoder_weights,
    fit_problems,
    interleave,
    read_deltalm,
    tie,
)
from s2sft_fairseq.checkpoints.finite_weights import check_finite
from s2sft_fairseq.checkpoints.model_folder import checkpoint_file
from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.data.dictionary import DICTIONARY, PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.pretrained_checkpoint import encoder_of, is_encoder, is_model_of_folder, open_pretrained
from s2sft_fairseq.models.unilm_config import SIZES as UNILM_SIZES

logger = logging.getLogger(__name__)

# In these sizes an encoder must equal BERT base: then it can become an encoder of fairseq's Transformer.
_REQUIRED = (
    *("embedding_dim", "layer_norm_position", "feed_forward", "biases", "rotary_base", "local_attention_window"),
    *("relative_position_bins", "disentangled_attention", "num_roles", "norm", "embedding_norm", "key_value_heads"),
    *("source_visibility", "head_dim", "query_key_norm", "embedding_scale"),
)
_FROM_ENCODER = (
    *("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads"),
    *("layer_norm_eps", "activation_fn"),
)
_FAIRSEQ_PAD = 1
# Sizes of DeltaLM that options may contradict.
_SUGGESTED = ("max_positions", "encoder_attention_heads", "layer_norm_eps", "activation_fn")


@dataclass(frozen=True)
class Start:
    """The parameters to start from, and the sizes that they determine."""

    path: Path
    weights: Weights
    """Weights of the whole model under its own names, with one token embedding; or of an encoder (``is_encoder``)."""
    known: dict[str, Any]
    """Sizes by the names of `DeltaLMConfig`; options must not contradict them."""
    suggested: dict[str, Any]
    """Further sizes; options may contradict them."""
    is_encoder: bool = False
    """Whether the weights are an encoder's, under fairseq's names; the decoder starts from them, too."""

    def load_into(self, model: nn.Module, decoder_layers: int) -> None:
        """Copy the parameters into a model.

        If a table has another number of rows than the model's, the first rows are copied. Further rows of the
        checkpoint are left out, and further rows of the model keep their initial values; the log tells how many.

        Raises:
            UserError: naming every parameter that is missing, unknown or of another shape.
        """
        weights = interleave(self.weights, decoder_layers) if self.is_encoder else self.weights
        own = model.state_dict()
        if problems := fit_problems({name: tuple(value.shape) for name, value in own.items()}, weights):
            raise UserError.of(problems, f"{self.path} does not fit the model:")
        with torch.no_grad():
            for name, value in weights.items():
                rows = min(len(own[name]), len(value))
                own[name][:rows].copy_(value[:rows])
                _report_rows(name, len(own[name]), len(value))
        logger.info(f"loaded all {len(weights)} parameters from {self.path}")


def open_start(path: str, dictionary: Dictionary) -> Start:
    """Read the folder or file that ``--pretrained`` names.

    Args:
        path: the folder of a converted encoder or of a converted DeltaLM, the file of a checkpoint, or a model folder.
        dictionary: the dictionary of the data.

    Raises:
        UserError: if it cannot be read, the model cannot start from it, or it does not match the dictionary.
    """
    file = checkpoint_file(path)
    if file.is_dir() or is_model_of_folder(file):
        return _from_pretrained(open_pretrained(file), dictionary)
    state = load_checkpoint(file, lazily=True)
    if is_encoder(state):
        return _from_pretrained(encoder_of(file, state), dictionary)
    return _from_checkpoint(file, state, dictionary)


def _from_pretrained(pretrained: PretrainedEncoder, dictionary: Dictionary) -> Start:
    path, is_unilm = pretrained.path, pretrained.model == "unilm"
    sizes = {**UNILM_SIZES, **pretrained.sizes} if is_unilm else pretrained.sizes
    problems = [
        f"the encoder must have {name} {UNILM_SIZES[name]}, but {path} has {sizes[name]}"
        for name in (_REQUIRED if is_unilm else ())
        if sizes[name] != UNILM_SIZES[name]
    ]
    problems += _dictionary_problems(pretrained, dictionary)
    if problems:
        raise UserError.of(problems)
    weights = pretrained.read_weights()
    if not is_unilm:
        tie(weights)
        return _start(path, weights, sizes)
    weights = encoder_weights(weights, dictionary.pad())
    known = {name: sizes[name] for name in _FROM_ENCODER}
    suggested = {"max_positions": sizes["max_positions"]}
    return Start(path, weights, {**known, "layernorm_embedding": "yes"}, suggested, is_encoder=True)


def _dictionary_problems(encoder: PretrainedEncoder, dictionary: Dictionary) -> list[str]:
    """Return a message if the symbols of data and encoder differ; with a folder, up to the shorter dictionary."""
    if encoder.path.is_file():
        encoder.check_symbols(dictionary.symbols)
        return []
    symbols = PretrainedDictionary.load(str(encoder.path / DICTIONARY)).symbols
    for number, (needed, found) in enumerate(zip(symbols, dictionary.symbols, strict=False)):
        if needed != found:
            return [
                f"the dictionary must begin as {encoder.path / DICTIONARY} does, but its symbol {number} is {found} "
                f"in place of {needed}: binarize the data with that file and s2sft preprocess, and read it with a task "
                "of this plugin (fairseq's own tasks put four symbols of their own before those of BERT)"
            ]
    return []


def _from_checkpoint(path: Path, state: Mapping[str, Any], dictionary: Dictionary) -> Start:
    given = next((kind for kind in ("weights", "model") if isinstance(state.get(kind), dict)), None)
    if given is None:
        raise UserError(
            f"--pretrained {path} must hold 'weights', as DeltaLM's own checkpoints do, or 'model', as fairseq's do, "
            f"but holds {', '.join(map(str, state)) or 'nothing'}"
        )
    check_finite(path, state[given])
    options = _model_options(state) if given == "model" else {}
    if not options and dictionary.pad() != _FAIRSEQ_PAD:
        raise UserError(
            f"{path} needs a dictionary whose padding is symbol {_FAIRSEQ_PAD}, as fairseq's, but it is symbol "
            f"{dictionary.pad()}"
        )
    try:
        found = read_deltalm(state[given], options, dictionary.pad())
    except UserError as error:
        raise UserError(f"--pretrained {path}: {error}") from None
    for note in found.notes:
        logger.warning(f"{path}: {note}")
    return _start(path, found.weights, found.sizes)


def _start(path: Path, weights: Weights, sizes: Mapping[str, Any]) -> Start:
    """Return a start from a whole DeltaLM."""
    known = {name: value for name, value in sizes.items() if name not in _SUGGESTED}
    return Start(path, weights, known, {name: value for name, value in sizes.items() if name in _SUGGESTED})


def _model_options(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the model options in a fairseq checkpoint."""
    options = (state.get("cfg") or {}).get("model") or state.get("args") or {}
    return vars(options) if isinstance(options, Namespace) else dict(options)


def _report_rows(name: str, own: int, given: int) -> None:
    kind = "symbols" if name == TOKENS else f"rows of {name}"
    if own > given:
        logger.info(f"the last {own - given:,} of {own:,} {kind} are new and keep their initial values")
    elif own < given:
        logger.info(f"the last {given - own:,} of {given:,} {kind} are left out: the model has {own:,}")
