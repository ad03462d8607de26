"""Blocks and batches of the packed format."""

import numpy as np
import pytest

from s2sft_fairseq.objectives.packing import Block, collate
from s2sft_fairseq.objectives.ragged import Ragged


def block(*tokens, **columns):
    settings = {"first_position": 0, "segment": 0, "label": 0, **columns}
    return Block.of(Ragged.of([np.array(tokens, dtype=np.int64)]), **settings)


def test_single_numbers_hold_for_every_token():
    made = block(7, 8, 9, first_position=4, segment=1, label=2, step=np.array([3, 4, 5]))
    assert made.token.tolist() == [7, 8, 9]
    assert made.position.tolist() == [4, 5, 6]
    assert made.segment.tolist() == [1, 1, 1]
    assert made.step.tolist() == [3, 4, 5]
    assert made.group.tolist() == [0, 0, 0]
    assert made.label.tolist() == [2, 2, 2]
    assert made.lengths.tolist() == [3]
    assert all(column.dtype == np.int64 for column in made)


def test_positions_of_each_example_count_on_from_its_own():
    tokens = Ragged.of([np.array([7, 8]), np.array([9]), np.array([10, 11, 12])])
    made = Block.of(tokens, first_position=np.array([3, 0, 5]), segment=0, label=0)
    assert made.position.tolist() == [3, 4, 0, 5, 6, 7]
    assert made.lengths.tolist() == [2, 1, 3]


def test_examples_stand_one_after_the_other():
    long_first = (block(11, 12, 13, label=1), block(21, first_position=3, segment=1, step=1, group=1, label=31))
    long_second = (block(14, label=1), block(24, 25, first_position=1, segment=1, step=2, group=3, label=34))
    batch = collate([long_first, long_second])
    assert batch.lengths == ((3, 1), (1, 2))
    assert batch.token.tolist() == [11, 12, 13, 21, 14, 24, 25]
    assert batch.position.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert batch.segment.tolist() == [0, 0, 0, 1, 0, 1, 1]
    assert batch.step.tolist() == [0, 0, 0, 1, 0, 2, 2]
    assert batch.group.tolist() == [0, 0, 0, 1, 0, 3, 3]
    assert batch.label.tolist() == [1, 1, 1, 31, 1, 34, 34]
    assert batch.token.dtype == np.int64
    assert all(type(length) is int for lengths in batch.lengths for length in lengths)


def test_one_by_one_or_at_once():
    """Examples that were packed together are joined with others as if each had been packed alone."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 5, (6, 3))
    examples = [
        tuple(block(*rng.integers(0, 99, length), first_position=int(i), group=i) for i, length in enumerate(each))
        for each in lengths
    ]
    together = [
        tuple(Block(*map(np.concatenate, zip(*blocks, strict=True))) for blocks in zip(*some, strict=True))
        for some in (examples[:1], examples[1:4], examples[4:])
    ]
    one_by_one, at_once = collate(examples), collate(together)
    assert one_by_one.lengths == at_once.lengths == tuple(map(tuple, lengths.tolist()))
    expected = [token for example in examples for each in example for token in each.token]
    assert one_by_one.token.tolist() == expected
    for name in ("token", "position", "segment", "step", "group", "label"):
        np.testing.assert_array_equal(getattr(one_by_one, name), getattr(at_once, name))


def test_examples_need_the_same_number_of_blocks():
    with pytest.raises(ValueError, match=r"one number of blocks, found \[1, 2\]"):
        collate([(block(1),), (block(1), block(2))])
