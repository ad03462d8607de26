"""Rows of unequal length, and their random numbers, which only depend on (seed, epoch, example, call, token)."""

from itertools import combinations

import numpy as np
import pytest

from s2sft_fairseq.objectives.ragged import Draws, Ragged, member


def rows(*values):
    return Ragged.of([np.array(each, dtype=np.int64) for each in values])


def test_rows_follow_each_other():
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


def blank(*lengths):
    return Ragged(np.zeros(sum(lengths)), np.array(lengths))


def drawn(seed=1, epoch=1, example=0, call=0, count=1000):
    draws = Draws(seed, epoch, np.array([example]))
    return [draws.random(blank(count)) for _ in range(call + 1)][call]


def test_the_hash_is_splitmix64():
    """The numbers of the generator's reference code for the seed 1234567."""
    assert member(np.array([1234567], dtype=np.uint64), np.arange(5)).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]


def test_an_example_gets_the_same_in_every_batch():
    lengths = {4: 5, 9: 0, 2: 7, 700: 3}
    batches = [[4, 9, 2, 700], [700, 2], [9, 4]]
    found = {}
    for batch in batches:
        draws = Draws(1, 2, np.array(batch))
        rows = blank(*(lengths[example] for example in batch))
        for call in (draws.random, draws.random, lambda rows, draws=draws: draws.integers(1000, rows)):
            for example, values in zip(batch, np.split(call(rows), np.cumsum(rows.lengths)[:-1]), strict=True):
                found.setdefault(example, []).append(values.tolist())
    # Three calls for each batch, each example in two batches.
    assert all(values[:3] == values[3:] for values in found.values())
    assert len({tuple(values[0]) for values in found.values()}) == 4


def test_fewer_tokens_get_the_first_of_more():
    assert drawn(count=7).tolist() == drawn(count=12)[:7].tolist()


@pytest.mark.parametrize("changed", ["seed", "epoch", "example", "call"])
def test_each_key_gives_other_numbers(changed):
    """They are uncorrelated: r of n pairs is within four standard errors, 1 / sqrt(n), of 0."""
    rows = [drawn(**{changed: value}, count=4000) for value in range(6)]
    for first, second in combinations(rows, 2):
        assert abs(np.corrcoef(first, second)[0, 1]) < 4 / np.sqrt(4000)
    # Nor can one key replace another.
    assert drawn(seed=1, epoch=2).tolist() != drawn(seed=2, epoch=1).tolist()
    assert drawn(epoch=1, example=2).tolist() != drawn(epoch=2, example=1).tolist()
    assert drawn(example=1, call=2).tolist() != drawn(example=2, call=1).tolist()


@pytest.mark.parametrize("across", ["tokens", "examples"])
def test_uniform(across):
    count = 100_000
    in_one_row, in_rows = drawn(count=count), Draws(3, 1, np.arange(count)).random(blank(*[1] * count))
    values = {"tokens": in_one_row, "examples": in_rows}[across]
    assert values.min() >= 0
    assert values.max() < 1
    # Chi-squared with 999 degrees of freedom: mean 999, standard deviation sqrt(2 * 999).
    counts = np.bincount((values * 1000).astype(int), minlength=1000)
    assert abs(((counts - 100) ** 2 / 100).sum() - 999) < 4 * np.sqrt(2 * 999)
    for lag in (1, 2, 7):
        assert abs(np.corrcoef(values[lag:], values[:-lag])[0, 1]) < 4 / np.sqrt(count)


def test_integers():
    values = Draws(1, 1, np.array([0])).integers(7, blank(70_000))
    assert values.dtype == np.int64
    counts = np.bincount(values)
    assert len(counts) == 7
    assert abs(((counts - 10_000) ** 2 / 10_000).sum() - 6) < 4 * np.sqrt(2 * 6)


def test_negative_seeds():
    assert drawn(seed=-1).tolist() != drawn(seed=1).tolist()
