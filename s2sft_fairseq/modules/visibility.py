"""The columns of a packed batch, the one visibility rule, and the attention that follows from both, block by block."""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Queries of a context that attend together in local layers, in windows: the more, the more keys each meets in vain.
QUERIES_IN_WINDOWS = 4


class PackedColumns(NamedTuple):
    """A packed batch as the model reads it: the columns of `s2sft_fairseq.objectives.packing` without the labels.

    Every column is an int64 tensor (T,). T: tokens of all examples.
    """

    tokens: Tensor
    positions: Tensor
    segments: Tensor
    steps: Tensor
    groups: Tensor
    lengths: Sequence[Sequence[int]]
    """The length of each block of each example."""

    @classmethod
    def given(cls, tokens: Tensor, positions: Tensor, segments: Tensor, lengths: Sequence[int]) -> "PackedColumns":
        """Make the columns of examples that are given as a whole, without targets or placeholders."""
        zeros = torch.zeros_like(tokens)
        return cls(tokens, positions, segments, zeros, zeros, [(length,) for length in lengths])


def sees(query_step: Tensor, query_group: Tensor, key_step: Tensor, key_group: Tensor) -> Tensor:
    """Tell whether a query sees a key: the rule of `s2sft_fairseq.objectives.packing`, for columns that broadcast."""
    earlier = torch.where(query_group > 0, key_step < query_step, key_step <= query_step)
    return torch.where(key_group == 0, earlier, key_group == query_group)


def is_near(query_position: Tensor, key_position: Tensor, window: int) -> Tensor:
    """Tell whether a key is at most ``window // 2`` positions away, for columns that broadcast."""
    return (key_position - query_position).abs() <= window // 2


def visible(query_step: Tensor, query_group: Tensor, key_step: Tensor, key_group: Tensor) -> Tensor:
    """Tell which keys each query sees.

    Shape:
        query columns (..., Q), key columns (..., K) -> bool (..., Q, K). Q: queries, K: keys.
    """
    query_step, query_group = query_step.unsqueeze(-1), query_group.unsqueeze(-1)
    return sees(query_step, query_group, key_step.unsqueeze(-2), key_group.unsqueeze(-2))


def within_window(query_positions: Tensor, key_positions: Tensor, window: int) -> Tensor:
    """Tell which keys are near enough for local attention.

    Shape:
        (..., Q), (..., K) -> bool (..., Q, K).
    """
    return is_near(query_positions.unsqueeze(-1), key_positions.unsqueeze(-2), window)


class AttentionBlock(NamedTuple):
    """Queries of a packed batch, and the keys that they meet: both are runs of its T tokens, of one example."""

    queries: slice
    keys: slice
    bias: Tensor | None
    """Added to the scores: (1 or h, Q, K), -inf where the rule forbids; None where all is visible."""


def attention_blocks(
    columns: PackedColumns,
    *,
    window: int = 0,
    relative_bias: Callable[[Tensor, Tensor], Tensor] | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[AttentionBlock]:
    """Work out the attention of a packed batch, once for all layers of a kind.

    The context of an example meets itself, and everything in it is visible. All that comes behind it meets the whole
    example.

    Args:
        columns: of the batch.
        window: of local attention, on top of the rule; 0: none.
        relative_bias: from positions of queries (Q,) and keys (K,) to their relative position bias (h, Q, K). h: heads.
        dtype: of the biases, where there is no relative one.
    """
    positions, steps, groups = columns.positions, columns.steps, columns.groups

    def block(queries: slice, keys: slice) -> AttentionBlock:
        allowed = visible(steps[queries], groups[queries], steps[keys], groups[keys])
        if window:
            allowed &= within_window(positions[queries], positions[keys], window)
        # (Q, K) -> (1, Q, K), for every head
        forbidden = ~allowed.unsqueeze(0)
        if relative_bias is not None:
            bias = relative_bias(positions[queries], positions[keys])
        else:
            bias = torch.zeros_like(forbidden, dtype=dtype)
        return AttentionBlock(queries, keys, bias.masked_fill(forbidden, float("-inf")))

    blocks = []
    for context, rest in _examples(columns.lengths):
        furthest = context.stop - context.start - 1
        if window and furthest > window // 2:
            blocks += [block(*near) for near in _windows(context, window)]
        elif context.stop > context.start:
            bias = None if relative_bias is None else relative_bias(positions[context], positions[context])
            blocks.append(AttentionBlock(context, context, bias))
        if rest.stop > rest.start:
            blocks.append(block(rest, slice(context.start, rest.stop)))
    return blocks


def _examples(lengths: Sequence[Sequence[int]]) -> Iterator[tuple[slice, slice]]:
    """Yield where the context of each example stands, and what comes behind it."""
    start = 0
    for context, *others in lengths:
        end = start + context
        stop = end + sum(others)
        yield slice(start, end), slice(end, stop)
        start = stop


def _windows(context: slice, window: int) -> Iterator[tuple[slice, slice]]:
    """Yield the queries and keys of local attention within a context, whose positions count on from one to the next."""
    reach = window // 2
    size = max(1, QUERIES_IN_WINDOWS * reach)
    for start in range(context.start, context.stop, size):
        stop = min(start + size, context.stop)
        yield slice(start, stop), slice(max(context.start, start - reach), min(context.stop, stop + reach))
