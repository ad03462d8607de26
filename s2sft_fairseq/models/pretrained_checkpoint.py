"""Open what ``--pretrained`` names: the folder of a converted encoder, or a saved checkpoint of this plugin.

A checkpoint records the sizes of its model. It may come from pre-training or fine-tuning, with its language model head;
from classification and similar tasks, whose head is left out; or it may have adapters, which are merged.
"""

import logging
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.checkpoints.model_folder import checkpoint_file, is_model_folder
from s2sft_fairseq.checkpoints.pretrained import CONFIG, MODEL, PretrainedEncoder
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checkpoints.state_checks import check_tensors
from s2sft_fairseq.errors import UserError, about
from s2sft_fairseq.models.trained_parameters import FINGERPRINT, WHERE, merge_adapters
from s2sft_fairseq.models.unilm_config import SIZES, UnilmConfig, complete_sizes
from s2sft_fairseq.models.unilm_parts import make_lm_head
from s2sft_fairseq.received import check_parts, has_part

logger = logging.getLogger(__name__)

TOKENS = "embeddings.tokens.weight"
_ENCODER, _LM_HEAD = "encoder.", "lm_head."
# Settings of the layout that the weights depend on. The next training chooses lengths and the objective.
_LEARNED_LAYOUT = ("source_start", "source_segments", "target_segment", "placeholder_segment", "placeholder")
# The same settings in pre-training, where they are options of the task.
_PRETRAINED_LAYOUT = {
    "ernie_gen_pretraining": ("target_segment", "placeholder"),
    "unilm_pretraining": ("placeholder",),
}


def check_fit(
    own: dict[str, torch.Size], given: dict[str, Tensor], embedding: str = "embeddings.tokens.weight"
) -> None:
    """Compare the names and shapes of a model's weights with those of a checkpoint.

    Args:
        own: shapes of the model's weights by name.
        given: weights of the checkpoint.
        embedding: name of the token embedding.

    Raises:
        UserError: if dictionary and checkpoint have different numbers of symbols, naming both; otherwise naming every
            parameter that is missing, unknown or of another shape.
    """
    table = given.get(embedding)  # adapters lack it
    if table is not None and table.dim() == 2 and len(table) != own[embedding][0]:
        raise UserError(
            f"the dictionary has {own[embedding][0]} symbols, but the checkpoint was made with {len(table)}: "
            "use the dict.txt that belongs to the checkpoint"
        )
    problems = [f"{key} is missing" for key in own.keys() - given.keys()]
    problems += [f"{key} is unknown" for key in given.keys() - own.keys()]
    problems += [
        f"{key} must have the shape {tuple(own[key])}, but has {tuple(given[key].shape)}"
        for key in own.keys() & given.keys()
        if own[key] != given[key].shape
    ]
    if problems:
        raise UserError.of(sorted(problems), "the checkpoint does not fit the model:")


def open_encoder(cfg: UnilmConfig) -> PretrainedEncoder | None:
    """Read the description of the encoder that ``--pretrained`` names; return None without ``--pretrained``.

    Raises:
        UserError: if it cannot be read (for adapters the message tells how to name another folder), or if it is an
            encoder-decoder.
    """
    if not cfg.pretrained:
        return None
    try:
        encoder = open_pretrained(cfg.pretrained)
    except UserError as error:
        if cfg.lora_rank:
            raise UserError(f"{error}; adapters need the encoder that they were trained on ({WHERE})") from None
        raise
    if encoder.model != "unilm":
        raise UserError(f"--pretrained {cfg.pretrained} holds DeltaLM: train it with --arch {encoder.model}")
    return encoder


def open_pretrained(path: str | Path) -> PretrainedEncoder:
    """Read the description of a converted encoder, of the encoder in a checkpoint file, or of that in a model folder.

    Raises:
        UserError: if it cannot be read, or holds no encoder.
    """
    path = checkpoint_file(path)
    if path.is_file() and not is_model_of_folder(path):
        return encoder_of(path, load_checkpoint(path, lazily=True))
    return PretrainedEncoder.open(path.parent if path.is_file() else path)


def without_adapters(state: Mapping[str, Any], where: Path, pretrained: Path | None = None) -> dict[str, Any]:
    """Return a checkpoint in which adapters, if any, are merged into the weights of their encoder.

    Args:
        state: the contents of the checkpoint.
        where: the file, for messages.
        pretrained: the folder of the encoder, if it has moved.

    Raises:
        UserError: if the encoder is missing or does not belong to the adapters, or if `pretrained` is given but the
            checkpoint has no adapters.
    """
    options = section(state, "model")
    weights: dict[str, Tensor] = dict(state.get("model") or {})
    prefix = _ENCODER if _ENCODER + FINGERPRINT in weights else ""
    if prefix + FINGERPRINT not in weights:
        if pretrained is not None:
            raise UserError(f"--pretrained is for checkpoints with adapters (--lora-rank), but {where} has none")
        return dict(state)
    cfg = UnilmConfig(pretrained=str(pretrained or options["pretrained"]), lora_rank=options["lora_rank"])
    encoder = open_encoder(cfg)
    assert encoder is not None
    adapters = {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}
    whole = merge_adapters(adapters, encoder.read_weights(), options, str(cfg.pretrained))
    if prefix:  # a model with another head has no language model head
        others = {name: value for name, value in weights.items() if not name.startswith(prefix)}
        kept = {name: value for name, value in whole.items() if not name.startswith(_LM_HEAD)}
        whole = {**{prefix + name: value for name, value in kept.items()}, **others}
    options |= {"lora_rank": 0, "pretrained": None}
    return {**state, "model": whole, "cfg": {**state["cfg"], "model": options}}


def is_model_of_folder(path: Path) -> bool:
    """Return whether a file is the ``model.pt`` of a converted encoder, with a configuration beside it."""
    return path.name == MODEL and has_part(path.parent / CONFIG)


def weights_file(path: Path) -> Path:
    """Return the file of the weights of a converted encoder or a model folder; any other path is returned unchanged.

    Raises:
        UserError: it exists, but is no regular file of the folder.
    """
    if not path.is_dir() or is_model_folder(path):
        return checkpoint_file(path)
    check_parts([path / MODEL])
    return path / MODEL


def is_encoder(state: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint holds an encoder-only model of this plugin."""
    weights = state.get("model")
    return isinstance(weights, dict) and any(
        name in weights for name in (TOKENS, _ENCODER + TOKENS, FINGERPRINT, _ENCODER + FINGERPRINT)
    )


def encoder_of(path: Path, state: Mapping[str, Any]) -> PretrainedEncoder:
    """Return the encoder that a checkpoint holds.

    Args:
        path: the file, for messages and as the name of the encoder.
        state: the contents of the checkpoint.

    Raises:
        UserError: if it holds another kind of model, or is damaged.
    """
    options = section(state, "model")
    if not is_encoder(state):
        name = options.get("_name") or options.get("arch") or "another program"
        raise UserError(
            f"--pretrained {path} must be a checkpoint of a unilm model, but is one of {name}: s2sft convert makes an "
            "encoder of checkpoints of other programs, and those of deltalm are for --arch deltalm"
        )
    weights = dict(state["model"])
    if not any(name in weights for name in (TOKENS, FINGERPRINT)):
        weights = {name.removeprefix(_ENCODER): value for name, value in weights.items() if name.startswith(_ENCODER)}
    if FINGERPRINT in weights:
        base = open_pretrained(options["pretrained"])
        weights = merge_adapters(weights, base.read_weights(), options, options["pretrained"])
    sizes = {name: default if options.get(name) is None else options[name] for name, default in SIZES.items()}
    with about(f"--pretrained {path}"):
        complete_sizes(UnilmConfig(), sizes)
    check_tensors(weights, f"--pretrained {path}")
    if weights[TOKENS].dim() != 2:
        shape = tuple(weights[TOKENS].shape)
        raise UserError(f"--pretrained {path} is damaged: {TOKENS} must have two dimensions, but has the shape {shape}")
    lacking = sorted(_head_names(sizes) - weights.keys())
    symbols = (state.get("task_state") or {}).get("symbols", "")
    layout = _learned_layout(state, section(state, "task"))
    return PretrainedEncoder(
        path, sizes, len(weights[TOKENS]), lacking, layout=layout, symbols=symbols, weights=weights
    )


def section(state: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a section of a checkpoint's configuration as a dictionary; a missing or damaged section is empty."""
    cfg = state.get("cfg")
    options = cfg.get(name) if isinstance(cfg, Mapping) else None
    options = vars(options) if isinstance(options, Namespace) else options  # a Namespace in older checkpoints
    return dict(options) if isinstance(options, Mapping) else {}


def _head_names(sizes: Mapping[str, Any]) -> set[str]:
    """Return the names of the parameters of the language model head."""
    with torch.device("meta"):
        head = make_lm_head(UnilmConfig(**sizes), vocab_size=1)
    return {_LM_HEAD + name for name in head.state_dict()}


def _learned_layout(state: Mapping[str, Any], task: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of the layout that the next training should keep."""
    known = dict((state.get("task_state") or {}).get("layout") or {})
    names: tuple[str, ...] = _LEARNED_LAYOUT
    if not known:
        known, names = dict(task), _PRETRAINED_LAYOUT.get(str(task.get("_name")), ())
    return {name: known[name] for name in names if known.get(name) is not None}
