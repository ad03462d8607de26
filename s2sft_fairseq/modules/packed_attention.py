"""Attention over a packed batch, block by block: no score is computed between examples or for padding.

T: tokens of the batch, h: heads, d: width of a head, Q, K: queries and keys of a block.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from s2sft_fairseq.modules.dropout import draw_noise, drop
from s2sft_fairseq.modules.visibility import AttentionBlock


def packed_attention(qkv: Tensor, blocks: Sequence[AttentionBlock], dropout: float = 0.0) -> Tensor:
    """Attend within the blocks.

    Args:
        qkv: queries, keys and values (T, 3, h, d).
        blocks: that have every token among their queries once.
        dropout: of the attention weights.

    Returns:
        (T, h, d).
    """
    if torch.is_grad_enabled() and qkv.requires_grad and qkv.device.type == "cpu":
        return _BlockAttention.apply(qkv, blocks, dropout, *(block.bias for block in blocks))
    query, key, value = _by_head(qkv).unsqueeze(1).unbind(0)
    attended = [
        scaled_dot_product_attention(
            query[:, :, block.queries],
            key[:, :, block.keys],
            value[:, :, block.keys],
            attn_mask=None if block.bias is None else block.bias.unsqueeze(0),
            dropout_p=dropout,
        )
        for block in blocks
    ]
    # (1, h, T, d) -> (T, h, d)
    return torch.cat(attended, dim=2).squeeze(0).transpose(0, 1)


def _by_head(qkv: Tensor) -> Tensor:
    # (T, 3, h, d) -> (3, h, T, d)
    return qkv.permute(1, 2, 0, 3)


class _BlockAttention(torch.autograd.Function):
    """The same with a backward pass of its own, for CPUs.

    PyTorch has there no fast attention with dropout, nor one that gives the gradient of a bias; and automatic
    differentiation would make a gradient of the whole batch for each slice of it. All blocks write into one here.
    """

    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, blocks: Sequence[AttentionBlock], dropout: float, *biases: Tensor | None
    ) -> Tensor:
        query, key, value = _by_head(qkv)
        scale = 1 / math.sqrt(qkv.size(-1))
        attended = torch.empty_like(qkv[:, 0])
        by_head = attended.transpose(0, 1)
        saved = []
        for (queries, keys, _), bias in zip(blocks, biases, strict=True):
            scores = torch.bmm(query[:, queries], key[:, keys].transpose(1, 2)).mul_(scale)
            weights = (scores if bias is None else scores.add_(bias)).softmax(dim=-1)
            noise = draw_noise(weights) if dropout else None
            # Scaled afterwards, where there are less numbers: d for each query, not K.
            torch.bmm(_drop(weights, noise, dropout), value[:, keys], out=by_head[:, queries])
            saved += [weights, noise]
        if dropout:
            attended.mul_(1 / (1 - dropout))
        ctx.blocks, ctx.dropout, ctx.scale = blocks, dropout, scale
        ctx.save_for_backward(qkv, attended, *saved)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        qkv, attended, *saved = ctx.saved_tensors
        query, key, value = _by_head(qkv)
        qkv_gradient = torch.zeros_like(qkv)
        query_gradient, key_gradient, value_gradient = _by_head(qkv_gradient)
        # The mean of a softmax's gradient under its weights is that of its result (FlashAttention-2, section 3.1).
        means = (gradient * attended).sum(dim=-1).t().unsqueeze(-1)
        gradient = gradient.transpose(0, 1)
        kept = 1 - ctx.dropout
        bias_gradients: list[Tensor | None] = []
        for index, (queries, keys, _) in enumerate(ctx.blocks):
            weights, noise = saved[2 * index : 2 * index + 2]
            outer = gradient[:, queries] / kept
            dropped = _drop(weights, noise, ctx.dropout)
            value_gradient[:, keys] += torch.bmm(dropped.transpose(1, 2), outer)
            scores = _drop(torch.bmm(outer, value[:, keys].transpose(1, 2)), noise, ctx.dropout)
            scores.sub_(means[:, queries]).mul_(weights)
            bias_gradients.append(scores if ctx.needs_input_grad[3 + index] else None)
            scaled_query, scaled_key = query[:, queries] * ctx.scale, key[:, keys] * ctx.scale
            torch.bmm(scores, scaled_key, out=query_gradient[:, queries])
            key_gradient[:, keys] += torch.bmm(scores.transpose(1, 2), scaled_query)
        return qkv_gradient, None, None, *bias_gradients


def _drop(x: Tensor, noise: Tensor | None, dropout: float) -> Tensor:
    return x if noise is None else drop(x, noise, dropout)
