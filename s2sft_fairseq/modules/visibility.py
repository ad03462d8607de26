"""Who sees whom: the columns of a packed batch, the one visibility rule, and attention block by block."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor


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
    """The length of each section of each example."""
    first_step: int | None = None
    """Of the placeholders, if the batch is in order (`s2sft_fairseq.objectives.packing.first_step`); else None."""

    @classmethod
    def given(cls, tokens: Tensor, positions: Tensor, segments: Tensor, lengths: Sequence[int]) -> "PackedColumns":
        """Make the columns of examples that are given as a whole, without targets or placeholders."""
        zeros = torch.zeros_like(tokens)
        return cls(tokens, positions, segments, zeros, zeros, [(length,) for length in lengths], first_step=1)


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
    """A run of queries of a packed batch, and the keys that they meet, all of one example."""

    queries: slice
    keys: slice | Tensor
    """Among the T tokens; numbers of them, ascending (K,), where they are not one run."""
    bias: Tensor | None
    """Added to the scores: (1 or h, Q, K), -inf where the rule forbids; None where all is visible."""
    rows: Tensor | None = None
    """Of the table of relative positions (Q, K); None without disentangled attention."""

    @property
    def num_keys(self) -> int:
        """K."""
        return self.keys.stop - self.keys.start if isinstance(self.keys, slice) else len(self.keys)


def attention_blocks(
    columns: PackedColumns,
    *,
    window: int = 0,
    relative_bias: Callable[[Tensor, Tensor], Tensor] | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[AttentionBlock]:
    """Work out the attention of a packed batch, once for all layers of a kind.

    Without a window there are two blocks for an example: its context meets itself, and everything in it is visible; all
    that comes behind it meets the whole example. With a window a block has ``window // 2`` queries at most, and no key
    that none of them sees: time and memory grow linearly with the length.

    Args:
        columns: of the batch.
        window: of local attention, on top of the rule; 0: none.
        relative_bias: from positions of queries (Q,) and keys (K,) to their relative position bias (h, Q, K). h: heads.
        dtype: of the biases, where there is no relative one.
    """
    positions, steps, groups = columns.positions, columns.steps, columns.groups

    def allowed(queries: slice, keys: slice | Tensor) -> Tensor:
        # (Q, K)
        seen = visible(steps[queries], groups[queries], steps[keys], groups[keys])
        return seen & within_window(positions[queries], positions[keys], window) if window else seen

    def block(queries: slice, keys: slice | Tensor, seen: Tensor) -> AttentionBlock:
        # (Q, K) -> (1, Q, K), for every head
        forbidden = ~seen.unsqueeze(0)
        if relative_bias is not None:
            bias = relative_bias(positions[queries], positions[keys]).masked_fill(forbidden, float("-inf"))
        else:
            bias = torch.zeros_like(forbidden, dtype=dtype).masked_fill_(forbidden, float("-inf"))
        return AttentionBlock(queries, keys, bias)

    blocks = []
    for context, *others in _examples(columns.lengths):
        furthest = context.stop - context.start - 1
        if window and furthest > window // 2:
            blocks += [block(queries, keys, allowed(queries, keys)) for queries, keys in _windows(context, window)]
        elif context.stop > context.start:
            bias = None if relative_bias is None else relative_bias(positions[context], positions[context])
            blocks.append(AttentionBlock(context, context, bias))
        rest = slice(context.stop, others[-1].stop if others else context.stop)
        if rest.stop == rest.start:
            continue
        example = slice(context.start, rest.stop)
        if not window:
            blocks.append(block(rest, example, allowed(rest, example)))
            continue
        if rest.stop - rest.start <= window // 2:
            others = [rest]  # few enough for one block
        runs = [run for other in others for run in _runs(other, window)]
        for queries, near in zip(runs, _near(positions, example, runs, window), strict=True):
            seen = allowed(queries, near)
            is_met = seen.any(dim=0)
            blocks.append(block(queries, _as_slice(near[is_met]), seen[:, is_met]))
    return blocks


def blocks_at(queries: Tensor, blocks: Sequence[AttentionBlock]) -> list[AttentionBlock]:
    """Leave some queries in the blocks only, and no block without any.

    Args:
        queries: numbers of tokens, ascending (N,).
        blocks: whose queries ascend too.

    Returns:
        Blocks whose ``queries`` are runs of these N.
    """
    bounds = torch.tensor([(block.queries.start, block.queries.stop) for block in blocks], device=queries.device)
    left = []
    for block, (start, stop) in zip(blocks, torch.searchsorted(queries, bounds).tolist(), strict=True):
        if stop > start:
            bias = block.bias
            if bias is not None:
                bias = bias[:, queries[start:stop] - block.queries.start]
            rows = None if block.rows is None else block.rows[queries[start:stop] - block.queries.start]
            left.append(AttentionBlock(slice(start, stop), block.keys, bias, rows))
    return left


def _examples(lengths: Sequence[Sequence[int]]) -> Iterator[list[slice]]:
    """Yield where the sections of each example stand, the context first."""
    start = 0
    for of_blocks in lengths:
        bounds = list(accumulate(of_blocks, initial=start))
        yield [slice(*each) for each in pairwise(bounds)]
        start = bounds[-1]


def _runs(block: slice, window: int) -> Iterator[slice]:
    """Cut a block into runs of queries of local attention: the longer they are, the more keys each meets in vain."""
    size = max(1, window // 2)
    for start in range(block.start, block.stop, size):
        yield slice(start, min(start + size, block.stop))


def _windows(context: slice, window: int) -> Iterator[tuple[slice, slice]]:
    """Yield the queries and keys of local attention within a context, whose positions count on from one to the next."""
    reach = window // 2
    for run in _runs(context, window):
        yield run, slice(max(context.start, run.start - reach), min(context.stop, run.stop + reach))


def _near(positions: Tensor, example: slice, runs: Sequence[slice], window: int) -> Iterator[Tensor]:
    """Yield the tokens of an example that may be near enough to a query of each run: their numbers, ascending (K,)."""
    ordered, order = positions[example].sort()
    of_runs = [positions[run] for run in runs]
    first = torch.stack([each.min() for each in of_runs]) - window // 2
    last = torch.stack([each.max() for each in of_runs]) + window // 2
    # Sorted once, so that no run looks at the whole example.
    starts, stops = torch.searchsorted(ordered, first), torch.searchsorted(ordered, last, right=True)
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        yield example.start + order[start:stop].sort().values


def _as_slice(numbers: Tensor) -> slice | Tensor:
    """Return ascending numbers as a slice if they are one run, which can be read where it is."""
    start, stop = int(numbers[0]), int(numbers[-1]) + 1
    return slice(start, stop) if stop - start == len(numbers) else numbers
