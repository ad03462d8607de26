"""Visibility: the columns of a packed batch, the one visibility rule, and the blocks of attention."""

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from s2sft_fairseq.modules.upload import upload

CAUSAL_RUN = 128
"""Queries of a causal context that attend together. In longer runs more scores are of keys that no query sees."""


class PackedColumns(NamedTuple):
    """A packed batch as the model reads it: the columns of `s2sft_fairseq.objectives.packing`, without the labels.

    Each column is an int64 tensor (T,). T: tokens of all examples.
    """

    tokens: Tensor
    positions: Tensor
    segments: Tensor
    steps: Tensor
    groups: Tensor
    lengths: Sequence[Sequence[int]]
    """The length of each section of each example."""
    first_step: int | None = None
    """First factorization step of the placeholders, if the batch is in order; see
    `s2sft_fairseq.objectives.packing.first_step`."""
    causal_context: bool = False
    """Whether a token of the context sees only what is before it, and itself; see `with_causal_context`."""

    def with_causal_context(self) -> "PackedColumns":
        """Return the columns with factorization steps of the context's own: token ``i`` of S has step ``i - S + 1``.

        By the visibility rule a context is then read from left to right. Its last token has step 0, so that all later
        tokens see all of it, as before.
        """
        if self.causal_context:
            return self
        offsets = [
            part
            for context, *others in self.lengths
            for part in (np.arange(1 - context, 1), np.zeros(sum(others), dtype=np.int64))
        ]
        steps = self.steps + upload(np.concatenate(offsets), self.steps.device) if offsets else self.steps
        return self._replace(steps=steps, causal_context=True)

    @classmethod
    def given(cls, tokens: Tensor, positions: Tensor, segments: Tensor, lengths: Sequence[int]) -> "PackedColumns":
        """Return the columns of examples whose tokens are all given, without targets or placeholders."""
        zeros = torch.zeros_like(tokens)
        return cls(tokens, positions, segments, zeros, zeros, [(length,) for length in lengths], first_step=1)


def sees(query_step: Tensor, query_group: Tensor, key_step: Tensor, key_group: Tensor) -> Tensor:
    """Return whether a query sees a key, by the rule of `s2sft_fairseq.objectives.packing`. The columns broadcast."""
    earlier = torch.where(query_group > 0, key_step < query_step, key_step <= query_step)
    return torch.where(key_group == 0, earlier, key_group == query_group)


def is_near(query_position: Tensor, key_position: Tensor, window: int) -> Tensor:
    """Return whether a key is at most ``window // 2`` positions away from a query. The columns broadcast."""
    return (key_position - query_position).abs() <= window // 2


def visible(query_step: Tensor, query_group: Tensor, key_step: Tensor, key_group: Tensor) -> Tensor:
    """Return which keys each query sees.

    Shape:
        query columns (..., Q), key columns (..., K) -> bool (..., Q, K). Q: queries, K: keys.
    """
    query_step, query_group = query_step.unsqueeze(-1), query_group.unsqueeze(-1)
    return sees(query_step, query_group, key_step.unsqueeze(-2), key_group.unsqueeze(-2))


def within_window(query_positions: Tensor, key_positions: Tensor, window: int) -> Tensor:
    """Return which keys are near enough for local attention.

    Shape:
        (..., Q), (..., K) -> bool (..., Q, K).
    """
    return is_near(query_positions.unsqueeze(-1), key_positions.unsqueeze(-2), window)


class AttentionBlock(NamedTuple):
    """Consecutive queries of one example of a packed batch, and the keys that they attend to."""

    queries: slice
    keys: slice | Tensor
    """A slice of the T tokens, or the ascending indices of the keys (K,) if they are not consecutive."""
    bias: Tensor | None
    """Added to the scores: (1 or h, Q, K), -inf where the query does not see the key; None: all keys are visible."""
    rows: Tensor | None = None
    """Rows of the table of relative positions (Q, K); None without disentangled attention."""

    @property
    def num_keys(self) -> int:
        """The number of keys, K."""
        return self.keys.stop - self.keys.start if isinstance(self.keys, slice) else len(self.keys)


def attention_blocks(
    columns: PackedColumns,
    *,
    window: int = 0,
    relative_bias: Callable[[Tensor, Tensor], Tensor] | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[AttentionBlock]:
    """Compute the attention blocks of a packed batch, once for all layers with the same pattern.

    Without a window an example has two blocks: its context attends to itself, where everything is visible, and all
    later tokens attend to the whole example. A causal context is cut into runs of queries, whose keys end with them.
    With a window a block has at most ``window // 2`` queries, and each of its keys is visible to at least one of them:
    time and memory grow linearly with the length.

    Args:
        columns: the columns of the batch.
        window: window of local attention, in addition to the rule; 0: no window.
        relative_bias: maps positions of queries (Q,) and keys (K,) to the relative position bias (h, Q, K). h: heads.
        dtype: data type of the biases if there is no relative position bias.
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
        is_cut = window and furthest > window // 2
        if is_cut or (columns.causal_context and furthest > 0):
            runs = _runs_of_context(context, window if is_cut else 0, causal=columns.causal_context)
            blocks += [block(queries, keys, allowed(queries, keys)) for queries, keys in runs]
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
        later = [run for other in others for run in _runs(other, window)]
        for queries, near in zip(later, _near(positions, example, later, window), strict=True):
            seen = allowed(queries, near)
            is_met = seen.any(dim=0)
            blocks.append(block(queries, _as_slice(near[is_met]), seen[:, is_met]))
    return blocks


def blocks_at(queries: Tensor, blocks: Sequence[AttentionBlock]) -> list[AttentionBlock]:
    """Keep only some queries in the blocks, and drop blocks without any.

    Args:
        queries: indices of tokens, ascending (N,).
        blocks: blocks in the order of their queries.

    Returns:
        Blocks whose ``queries`` are slices of these N.
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
    """Yield the slices of the sections of each example, the context first."""
    start = 0
    for of_blocks in lengths:
        bounds = list(accumulate(of_blocks, initial=start))
        yield [slice(*each) for each in pairwise(bounds)]
        start = bounds[-1]


def _runs(block: slice, window: int) -> Iterator[slice]:
    """Cut a slice into runs of queries for local attention. In longer runs a query scores more keys out of reach."""
    size = max(1, window // 2)
    for start in range(block.start, block.stop, size):
        yield slice(start, min(start + size, block.stop))


def _runs_of_context(context: slice, window: int, *, causal: bool) -> Iterator[tuple[slice, slice]]:
    """Yield runs of queries of a context, whose positions are consecutive, and the keys that they attend to.

    Args:
        context: the tokens of the context.
        window: window of local attention; 0: no window, for a causal context.
        causal: whether the context is read from left to right.
    """
    reach = window // 2 if window else context.stop - context.start
    for run in _runs(context, window or 2 * CAUSAL_RUN):
        furthest = run.stop if causal else run.stop + reach
        yield run, slice(max(context.start, run.start - reach), min(context.stop, furthest))


def _near(positions: Tensor, example: slice, runs: Sequence[slice], window: int) -> Iterator[Tensor]:
    """Yield the tokens of an example that are near enough to a query of each run, as ascending indices (K,)."""
    ordered, order = positions[example].sort()
    of_runs = [positions[run] for run in runs]
    first = torch.stack([each.min() for each in of_runs]) - window // 2
    last = torch.stack([each.max() for each in of_runs]) + window // 2
    # The positions are sorted once, so that a run does not search the whole example.
    starts, stops = torch.searchsorted(ordered, first), torch.searchsorted(ordered, last, right=True)
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        yield example.start + order[start:stop].sort().values


def _as_slice(numbers: Tensor) -> slice | Tensor:
    """Return ascending indices as a slice if they are consecutive: a slice is read without a copy."""
    start, stop = int(numbers[0]), int(numbers[-1]) + 1
    return slice(start, stop) if stop - start == len(numbers) else numbers
