"""Choose the parameters that are trained: all, all except frozen ones, or adapters of a pretrained encoder.

The checkpoints of a model with adapters hold only parameters that the folder of the encoder lacks: the adapters, and
newly initialized ones. The options of the checkpoint name the folder. A fingerprint of the encoder's weights is stored
with the adapters, so that they are never used with another encoder.
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
"""Name of the buffer that holds the fingerprint in a model with adapters."""
_FINGERPRINT_BYTES = 6  # averaging checkpoints sums fingerprints: the sum of 32,768 fits into 64 bits

LORA_TARGETS = {"attention": ("qkv", "output"), "all": ("qkv", "output", "fc1", "fc2")}
"""Names of the linear layers of an encoder layer that get adapters."""

WHERE = (
    "--pretrained of s2sft train and s2sft export, --model-overrides \"{'pretrained': 'DIR'}\" of all other commands"
)
"""The options that name the folder of an encoder, for messages."""

Weights = Mapping[str, Tensor]


def freeze(model: BaseFairseqModel, cfg: UnilmConfig) -> None:
    """Freeze the embeddings and the first layers, as the options say; in place.

    Frozen layers also freeze everything that they depend on, including the relative position bias of all layers, so
    that the backward pass ends above them.
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
    """Add adapters to a model whose encoder is loaded, and freeze all its parameters but the new ones; in place.

    From now on ``state_dict`` holds only the adapters and ``newly_initialized``: parameters that the encoder lacked.
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
    """Return whether a model has adapters."""
    return hasattr(model, FINGERPRINT)


def trained_share(model: nn.Module) -> str:
    """Return how many parameters of a model are trained, as a sentence."""
    parameters = list(model.parameters())
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    return f"{trained:,} of {sum(parameter.numel() for parameter in parameters):,} parameters are trained"


def check_adapters(model: nn.Module, checkpoint: Weights, folder: str | None) -> None:
    """Check that both the model and the checkpoint have adapters or neither, and that adapters match the encoder.

    Args:
        model: the model to load into.
        checkpoint: the weights to load.
        folder: the folder of the encoder, for the message.

    Raises:
        UserError: if only one of them has adapters, or the adapters belong to another encoder.
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
    """Check that adapters were trained with an encoder.

    Raises:
        UserError: if the fingerprints differ.
    """
    if of_adapters != of_encoder:
        raise UserError(
            f"the adapters were trained on another encoder than {folder}, whose weights may have changed since: name "
            f"the folder that they were trained on ({WHERE})"
        )


def fingerprint(weights: Weights) -> int:
    """Return a number that identifies weights, from their names, their shapes, and three rows of each.

    The rows are converted to float32, so that a 16-bit tensor and its float32 copy have the same fingerprint.
    """
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = weights[name]
        rows = value.reshape(len(value), -1)[[0, len(value) // 2, -1]]
        digest.update(f"{name} {tuple(value.shape)} ".encode())
        digest.update(rows.detach().cpu().float().contiguous().numpy().tobytes())
    return int.from_bytes(digest.digest()[:_FINGERPRINT_BYTES], "big")


def merge_adapters(checkpoint: Weights, base: Weights, options: Mapping[str, Any], folder: str) -> dict[str, Tensor]:
    """Merge a checkpoint with adapters into the weights of its encoder.

    Args:
        checkpoint: the adapters, and the parameters that the encoder lacked.
        base: the weights of the encoder.
        options: the options of the model, by the names of `UnilmConfig`.
        folder: the folder of the encoder, for the message.

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
