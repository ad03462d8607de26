"""The packed format: every objective of the plugin is a choice of these columns.

A packed example is one sequence for one encoder pass. Each of its tokens has

========  =================================================================================================
token     vocabulary id
position  position id; a placeholder has the position of the token that it stands for
segment   segment (token type) id
step      factorization step at which the content of this token becomes known; 0 = given from the start
group     0 = content, > 0 = placeholder ([M], [P], [ATTN] in the papers), -1 = padding
label     the id to predict here, or the padding id
========  =================================================================================================

A query ``q`` sees a key ``k`` exactly when

* ``k`` is content and ``step[k] <= step[q]`` (``q`` is content) or ``step[k] < step[q]`` (``q`` is a placeholder), or
* ``k`` is a placeholder and ``q`` is a placeholder of the same group.

Padding is never seen. As a query it counts as content of step 0, so that no query is left without a key.

The tokens stand in *blocks*, ordered so that no query sees a key of a later block: first the context (step 0), then
content that is predicted (step > 0), then placeholders. Attention uses this: the queries of a block meet the keys of
a prefix of the sequence only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

PADDING_GROUP = -1


class Block(NamedTuple):
    """A run of tokens of one kind; every column is an int64 array (L,). L: tokens of this block."""

    token: np.ndarray
    position: np.ndarray
    segment: np.ndarray
    step: np.ndarray
    group: np.ndarray
    label: np.ndarray

    @classmethod
    def of(
        cls,
        token: np.ndarray,
        *,
        first_position: int,
        segment: np.ndarray | int,
        label: np.ndarray | int,
        step: np.ndarray | int = 0,
        group: np.ndarray | int = 0,
    ) -> "Block":
        """Make a block whose positions count on from ``first_position``; single numbers hold for each of its tokens."""
        length = len(token)

        def column(value: np.ndarray | int) -> np.ndarray:
            return value if isinstance(value, np.ndarray) else np.full(length, value, dtype=np.int64)

        position = np.arange(first_position, first_position + length, dtype=np.int64)
        return cls(token, position, column(segment), column(step), column(group), column(label))


PackedExample = tuple[Block, ...]


@dataclass(frozen=True)
class PackedBatch:
    """Packed examples side by side, each block padded on its right to the longest of the batch.

    Every column is an int64 array (B, L). B: examples, L: sum of ``block_lengths``.
    """

    token: np.ndarray
    position: np.ndarray
    segment: np.ndarray
    step: np.ndarray
    group: np.ndarray
    label: np.ndarray
    block_lengths: tuple[int, ...]


def collate(examples: Sequence[PackedExample], pad: int) -> PackedBatch:
    """Pad packed examples to one batch.

    Raises:
        ValueError: if the examples do not all have the same number of blocks.
    """
    num_blocks = len(examples[0])
    if any(len(example) != num_blocks for example in examples):
        raise ValueError(f"examples of one batch need one number of blocks, found {sorted(set(map(len, examples)))}")
    block_lengths = tuple(max(len(example[i].token) for example in examples) for i in range(num_blocks))
    starts = np.concatenate([[0], np.cumsum(block_lengths)])
    padding = Block(token=pad, position=0, segment=0, step=0, group=PADDING_GROUP, label=pad)
    columns = Block(*(np.full((len(examples), starts[-1]), value, dtype=np.int64) for value in padding))
    for row, example in enumerate(examples):
        for start, block in zip(starts, example, strict=False):
            for column, values in zip(columns, block, strict=True):
                column[row, start : start + len(values)] = values
    return PackedBatch(*columns, block_lengths=block_lengths)
