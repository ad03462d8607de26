"""The one visibility rule, and the attention masks of a packed batch that follow from it."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


def visible(query_step: Tensor, query_group: Tensor, key_step: Tensor, key_group: Tensor) -> Tensor:
    """Tell which keys each query sees: the rule of `s2sft_fairseq.objectives.packing`.

    Shape:
        query columns (..., Q), key columns (..., K) -> bool (..., Q, K). Q: queries, K: keys.
    """
    query_step, query_group = query_step.unsqueeze(-1), query_group.unsqueeze(-1)
    key_step, key_group = key_step.unsqueeze(-2), key_group.unsqueeze(-2)
    earlier = torch.where(query_group > 0, key_step < query_step, key_step <= query_step)
    return torch.where(key_group == 0, earlier, (key_group > 0) & (key_group == query_group))


def within_window(query_positions: Tensor, key_positions: Tensor, window: int) -> Tensor:
    """Tell which keys are near enough for local attention: at most ``window // 2`` positions away.

    Shape:
        (..., Q), (..., K) -> bool (..., Q, K).
    """
    return (key_positions.unsqueeze(-2) - query_positions.unsqueeze(-1)).abs() <= window // 2


class AttentionBlock(NamedTuple):
    """The queries ``start:end`` of a packed sequence, which meet the keys ``0:end``."""

    start: int
    end: int
    bias: Tensor | None
    """Added to the scores: (B, 1 or h, end - start, end), -inf where the rule forbids; None where all is visible."""


def attention_blocks(
    positions: Tensor,
    steps: Tensor,
    groups: Tensor,
    block_lengths: Sequence[int],
    *,
    window: int = 0,
    relative_bias: Callable[[int, int], Tensor] | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[AttentionBlock]:
    """Work out the attention of a packed batch, once for all layers of a kind.

    Args:
        positions: position ids (B, L). B: examples, L: packed positions.
        steps: factorization steps (B, L).
        groups: groups (B, L).
        block_lengths: positions of each block, padding included; they add up to L.
        window: of local attention, on top of the rule; 0: none.
        relative_bias: from ``start, end`` to the relative position bias of the queries ``start:end`` towards the keys
            ``0:end``, (B, h, end - start, end). h: heads.
        dtype: of the biases, where there is no relative one.
    """
    blocks, start = [], 0
    for length in block_lengths:
        end = start + length
        allowed = visible(steps[:, start:end], groups[:, start:end], steps[:, :end], groups[:, :end])
        if window:
            # Padding stands at position 0, from where it may reach no key: it sees what it does without a window.
            near = within_window(positions[:, start:end], positions[:, :end], window)
            allowed &= near | (groups[:, start:end] < 0).unsqueeze(-1)
        bias = None if relative_bias is None else relative_bias(start, end)
        if bias is not None or not bool(allowed.all()):
            # (B, Q, K) -> (B, 1, Q, K), for every head
            forbidden = ~allowed.unsqueeze(1)
            if bias is None:
                bias = torch.zeros_like(forbidden, dtype=dtype)
            bias = bias.masked_fill(forbidden, float("-inf"))
        blocks.append(AttentionBlock(start, end, bias))
        start = end
    return blocks
