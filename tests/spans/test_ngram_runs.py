"""Sorted files of counts, and their sums."""

from collections import Counter

import numpy as np
import pytest

from s2sft_fairseq.spans.ngram_runs import key_ranges, merge_runs, write_run


@pytest.fixture
def make_runs(tmp_path):
    """Write runs of keys that are drawn from few and many, and count them all."""

    def make(number, seed=0):
        rng = np.random.default_rng(seed)
        runs, total = [], Counter()
        for run in range(number):
            keys = rng.integers(0, rng.choice([5, 300, 2**62]), rng.integers(1, 400))
            runs.append(write_run(tmp_path / f"{run}.npy", keys))
            total.update(keys.tolist())
        return runs, total

    return make


@pytest.mark.parametrize("size", [1, 100, 1000, 10**6])
@pytest.mark.parametrize("number", [1, 2, 7])
def test_all_keys_are_summed_range_by_range(make_runs, number, size):
    runs, total = make_runs(number)
    keys, counts = [], []
    for start, end in key_ranges(runs, size):
        some, counted = merge_runs(runs, start, end)
        assert some.dtype == counted.dtype == np.int64
        held = sum(((start <= np.load(run)[0]) & (np.load(run)[0] < end)).sum() for run in runs)
        assert held <= max(size, 3 * number)
        keys += some.tolist()
        counts += counted.tolist()
    assert keys == sorted(total)
    assert dict(zip(keys, counts, strict=True)) == total


def test_nothing(tmp_path):
    assert write_run(tmp_path / "a.npy", np.array([-1, -5])) is None
    assert list(tmp_path.iterdir()) == []
    assert key_ranges([], 10) == []


def test_a_range_without_keys(tmp_path):
    run = write_run(tmp_path / "a.npy", np.array([5, 3, 5, -1]))
    keys, counts = merge_runs([run], 6, 9)
    assert keys.tolist() == counts.tolist() == []
    keys, counts = merge_runs([run], 0, 6)
    assert (keys.tolist(), counts.tolist()) == ([3, 5], [1, 2])
