"""Prepare a model for decoding: convert its data type, and pack weights for the CPU's matrix kernels."""

import logging
import os

import torch
from fairseq.models import BaseFairseqModel
from torch import nn

from s2sft_fairseq.checkpoints.finite_weights import check_half_precision
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.modules.cpu_linear import (
    PackedLinear,
    can_pack,
    can_quantize,
    multiplies_bf16,
    pack_linear_layers,
)
from s2sft_fairseq.modules.disentangled_attention import RelativeEmbeddings
from s2sft_fairseq.modules.lora import merge_lora

logger = logging.getLogger(__name__)

QUANTIZATIONS = ("none", "int8")


def prepare_for_inference(model: BaseFairseqModel, *, bf16: bool, quantize: str) -> None:
    """Convert, quantize and pack a `UnilmModel` in place; afterwards it can be neither trained nor moved nor saved.

    Packing changes results only by float32 rounding. A model on a GPU is converted, not packed.

    Args:
        model: the model, on its device; with ``--fp16``, already in float16.
        bf16: compute in bfloat16, but scores in float32.
        quantize: ``int8``: linear layers and language model head multiply in 8 bits; ``none``: no quantization.

    Raises:
        UserError: if ``quantize`` contradicts device, data type or CPU, or weights overflowed in float16.
    """
    # PyTorch keeps one compiled product per shape and reads this before the first one. Decoding has new shapes in every
    # batch: with PyTorch's own 1,024 a server grows by hundreds of MB and is no faster.
    os.environ.setdefault("LRU_CACHE_CAPACITY", "64")
    check_half_precision(model)
    if quantize == "int8" and (problems := _int8_problems(model, bf16)):
        raise UserError.of(problems)
    merge_lora(model)
    weight = model.embeddings.tokens.weight
    if bf16:
        if weight.device.type == "cpu" and not multiplies_bf16():
            logger.warning(
                "--bf16 is slow on this CPU, which has no instructions for it (AMX, AVX512-BF16): leave it out"
            )
        model.bfloat16()
    keep_relative_positions(model)
    if quantize == "none":
        fuse_gelu(model)
    pack_linear_layers(model, quantize=quantize == "int8")
    model.lm_head.pack(model.embeddings.tokens.weight, quantize=quantize == "int8")


@torch.no_grad()
def keep_relative_positions(model: BaseFairseqModel) -> None:
    """Make disentangled attention project the table of relative positions once, not in every step; in place."""
    relative = model.relative_position
    if isinstance(relative, RelativeEmbeddings):
        relative.fold_layer_norm()
        for layer in model.layers:
            layer.attention.keep_projected(relative())


def fuse_gelu(model: BaseFairseqModel) -> None:
    """Apply GELU in the kernel of the first feed-forward layer, which saves a pass over the widest states; in place."""
    for layer in model.layers:
        if layer.activation is nn.functional.gelu and not layer.gated and can_pack(layer.fc1.weight):
            layer.fc1 = PackedLinear(layer.fc1.weight, layer.fc1.bias, gelu=True)
            layer.activation = nn.Identity()


def _int8_problems(model: BaseFairseqModel, bf16: bool) -> list[str]:
    weight = model.embeddings.tokens.weight
    found = []
    if bf16:
        found.append("--quantize int8 and --bf16 exclude each other: give one of them")
    if weight.dtype == torch.float16:
        found.append("--quantize int8 and --fp16 exclude each other: give one of them")
    if weight.device.type != "cpu":
        found.append(f"--quantize int8 needs the CPU, but the model is on {weight.device.type}: give --cpu too")
    if not found and not can_quantize(weight):
        found.append(
            "--quantize int8 needs a CPU that multiplies 8-bit numbers (VNNI instructions), but this one does not"
        )
    return found
