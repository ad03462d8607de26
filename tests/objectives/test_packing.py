"""Blocks and batches of the packed format."""

import numpy as np
import pytest

from s2sft_fairseq.objectives.packing import PADDING_GROUP, Block, collate


def block(*tokens, **columns):
    settings = {"first_position": 0, "segment": 0, "label": 0, **columns}
    return Block.of(np.array(tokens, dtype=np.int64), **settings)


def test_single_numbers_hold_for_every_token():
    made = block(7, 8, 9, first_position=4, segment=1, label=2, step=np.array([3, 4, 5]))
    assert made.token.tolist() == [7, 8, 9]
    assert made.position.tolist() == [4, 5, 6]
    assert made.segment.tolist() == [1, 1, 1]
    assert made.step.tolist() == [3, 4, 5]
    assert made.group.tolist() == [0, 0, 0]
    assert made.label.tolist() == [2, 2, 2]
    assert all(column.dtype == np.int64 for column in made)


def test_each_block_is_padded_to_the_longest_of_its_own():
    long_first = (block(11, 12, 13, label=1), block(21, first_position=3, segment=1, step=1, group=1, label=31))
    long_second = (block(14, label=1), block(24, 25, first_position=1, segment=1, step=2, group=3, label=34))
    batch = collate([long_first, long_second], pad=1)
    assert batch.block_lengths == (3, 2)
    assert batch.token.tolist() == [[11, 12, 13, 21, 1], [14, 1, 1, 24, 25]]
    # Padding leaves no gap in the positions of the next block, and has position 0 itself.
    assert batch.position.tolist() == [[0, 1, 2, 3, 0], [0, 0, 0, 1, 2]]
    assert batch.segment.tolist() == [[0, 0, 0, 1, 0], [0, 0, 0, 1, 1]]
    assert batch.step.tolist() == [[0, 0, 0, 1, 0], [0, 0, 0, 2, 2]]
    pad = PADDING_GROUP
    assert batch.group.tolist() == [[0, 0, 0, 1, pad], [0, pad, pad, 3, 3]]
    assert batch.label.tolist() == [[1, 1, 1, 31, 1], [1, 1, 1, 34, 34]]


def test_examples_need_the_same_number_of_blocks():
    with pytest.raises(ValueError, match=r"one number of blocks, found \[1, 2\]"):
        collate([(block(1),), (block(1), block(2))], pad=0)
