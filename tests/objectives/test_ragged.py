"""Rows of unequal length."""

import numpy as np
import pytest

from s2sft_fairseq.objectives.ragged import Ragged


def rows(*values):
    return Ragged.of([np.array(each, dtype=np.int64) for each in values])


def test_rows_stand_one_after_the_other():
    ragged = rows([7, 5, 6], [], [9])
    assert ragged.values.tolist() == [7, 5, 6, 9]
    assert ragged.lengths.tolist() == [3, 0, 1]
    assert ragged.row.tolist() == [0, 0, 0, 2]
    assert ragged.place.tolist() == [0, 1, 2, 0]
    assert ragged.lengths.dtype == ragged.place.dtype == np.int64


def test_padding_on_the_right():
    ragged = rows([7, 5, 6], [], [9])
    assert ragged.padded(1).tolist() == [[7, 5, 6], [1, 1, 1], [9, 1, 1]]
    assert ragged.padded(1)[ragged.is_real].tolist() == ragged.values.tolist()
    assert rows([], []).padded(1).shape == (2, 0)


def test_other_values():
    ragged = rows([7, 5], [9])
    other = ragged.with_values(ragged.values * 0.5)
    assert other.padded(0).tolist() == [[3.5, 2.5], [4.5, 0]]


@pytest.mark.parametrize("seed", range(5))
def test_rank(seed):
    rng = np.random.default_rng(seed)
    values = [rng.random(length) for length in rng.integers(0, 9, 20)]
    expected = [(row[:, np.newaxis] > row).sum(axis=1) for row in values]
    assert Ragged.of(values).rank().tolist() == np.concatenate(expected).tolist()
