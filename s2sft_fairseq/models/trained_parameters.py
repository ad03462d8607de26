"""What of a model is trained: all of it, all but what is frozen, or adapters beside a pretrained encoder.

A model with adapters keeps in checkpoints only what is not in the folder of its encoder: the adapters, and what the
encoder lacked. Which folder that is stays in the options of the checkpoint, and a fingerprint of its weights is kept
with the adapters, so that they are never put beside others.
"""

import hashlib
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import torch
from fairseq.models import BaseFairseqModel
from torch import Tensor, nn

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.unilm_config import UnilmConfig
from s2sft_fairseq.modules.lora import ADAPTERS, add_lora, merged_weight

FINGERPRINT = "base_fingerprint"
"""Name of the buffer of a model with adapters."""
_FINGERPRINT_BYTES = 6  # the sum of 32,768 of them, to average checkpoints, fits into 64 bits

LORA_TARGETS = {"attention": ("qkv", "output"), "all": ("qkv", "output", "fc1", "fc2")}
"""Names of the linear layers of an encoder layer that get adapters."""

WHERE = (
    "--pretrained of s2sft train and s2sft export, --model-overrides \"{'pretrained': 'DIR'}\" of all other commands"
)
"""How to name the folder of an encoder."""

Weights = Mapping[str, Tensor]


def freeze(model: BaseFairseqModel, cfg: UnilmConfig) -> None:
    """Freeze the embeddings and the first layers, as the options say; in place.

    With frozen layers all that they depend on is frozen too, the relative position bias of all layers among it, so that
    the backward pass ends above them.
    """
    embeddings = model.embeddings
    tables = (embeddings.tokens, embeddings.positions, embeddings.segments, embeddings.roles, embeddings.turns)
    frozen: list[nn.Module | None] = [*tables] if cfg.freeze_embeddings else []
    if cfg.freeze_layers:
        frozen += [embeddings, model.relative_position, *model.layers[: cfg.freeze_layers]]
    for module in frozen:
        if module is not None:
            module.requires_grad_(False)


def add_adapters(model: BaseFairseqModel, cfg: UnilmConfig, newly_initialized: Collection[str]) -> None:
    """Give adapters to a model whose encoder is loaded, and freeze all else but what the encoder lacked; in place.

    Its ``state_dict`` is from now on what a checkpoint keeps.
    """
    base = {name: value for name, value in model.state_dict().items() if name not in newly_initialized}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in newly_initialized)
    targets = LORA_TARGETS[str(cfg.lora_targets)]
    add_lora(model.layers, targets, rank=cfg.lora_rank, alpha=cfg.lora_alpha, dropout=cfg.lora_dropout)
    model.register_buffer(FINGERPRINT, torch.tensor(fingerprint(base)))
    kept = {FINGERPRINT, *newly_initialized}
    kept |= {name for name, _ in model.named_parameters() if name.rpartition(".")[2] in ADAPTERS}
    model.register_state_dict_post_hook(partial(_keep, frozenset(kept)))


def has_adapters(model: nn.Module) -> bool:
    """Tell whether adapters were added to a model."""
    return hasattr(model, FINGERPRINT)


def trained_share(model: nn.Module) -> str:
    """Return how many parameters of a model are trained, as a sentence."""
    parameters = list(model.parameters())
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    return f"{trained:,} of {sum(parameter.numel() for parameter in parameters):,} parameters are trained"


def check_adapters(model: nn.Module, checkpoint: Weights, folder: str | None) -> None:
    """Make sure that a checkpoint has adapters where the model has them, and that they belong to its encoder.

    Args:
        model: the one to load into.
        checkpoint: the weights to load.
        folder: of the encoder, for the message.

    Raises:
        UserError: if that is not so.
    """
    if has_adapters(model) != (FINGERPRINT in checkpoint):
        ours, theirs = ("has adapters", "none") if has_adapters(model) else ("has no adapters", "some")
        raise UserError(
            f"the model {ours} (--lora-rank), but the checkpoint has {theirs}: give --lora-rank as in the training of "
            "the checkpoint, or start another --save-dir"
        )
    if has_adapters(model):
        check_fingerprint(int(checkpoint[FINGERPRINT]), int(getattr(model, FINGERPRINT)), folder)


def check_fingerprint(of_adapters: int, of_encoder: int, folder: str | None) -> None:
    """Make sure that adapters were trained beside an encoder.

    Raises:
        UserError: if their fingerprints differ.
    """
    if of_adapters != of_encoder:
        raise UserError(
            f"the adapters were trained on another encoder than {folder}, whose weights may have changed since: name "
            f"the folder that they were trained on ({WHERE})"
        )


def fingerprint(weights: Weights) -> int:
    """Return a number that tells weights apart: by their names, their shapes, and three rows of each.

    The numbers are taken as float32, so that it does not matter whether a file has them in 16 bits.
    """
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name]
        rows = value.reshape(len(value), -1)[[0, len(value) // 2, -1]]
        digest.update(f"{name} {tuple(value.shape)} ".encode())
        digest.update(rows.detach().cpu().float().contiguous().numpy().tobytes())
    return int.from_bytes(digest.digest()[:_FINGERPRINT_BYTES], "big")


def merge_adapters(checkpoint: Weights, base: Weights, options: Mapping[str, Any], folder: str) -> dict[str, Tensor]:
    """Put together the weights of a model from those of its encoder and a checkpoint with adapters.

    Args:
        checkpoint: the adapters, and what the encoder lacked.
        base: the weights of the encoder.
        options: of the model, by the names of `UnilmConfig`.
        folder: of the encoder, for the message.

    Raises:
        UserError: if the adapters belong to another encoder.
    """
    check_fingerprint(int(checkpoint[FINGERPRINT]), fingerprint(base), folder)
    weights = {**base, **checkpoint}
    del weights[FINGERPRINT]
    scale = options["lora_alpha"] / options["lora_rank"]
    for name in [name for name in weights if name.endswith(f".{ADAPTERS[0]}")]:
        layer = name.removesuffix(ADAPTERS[0])
        lora_a, lora_b = (weights.pop(layer + part) for part in ADAPTERS)
        weights[f"{layer}weight"] = merged_weight(weights[f"{layer}weight"], lora_a, lora_b, scale)
    return weights


def _keep(
    names: Collection[str], module: nn.Module, state: dict[str, Tensor], prefix: str, _metadata: dict[str, Any]
) -> None:
    for name in [name for name in state if name.startswith(prefix) and name.removeprefix(prefix) not in names]:
        del state[name]
