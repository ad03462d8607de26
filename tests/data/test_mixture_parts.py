"""Pairs that are joined to one text, and temperatures and shares by hand; tests of tasks cover batches of parts."""

import numpy as np
import pytest
import torch

from s2sft_fairseq.data.mixture_parts import ConcatenatedPairs, TemperatureSchedule, whole_counts

EOS = 2


def test_concatenated_pairs():
    """Each side is cut to half, and pairs with an empty side are left out."""

    class Lines(list):
        sizes = property(lambda self: np.array([len(line) for line in self]))

    sources = Lines(torch.tensor(line) for line in ([5, 6, EOS], [EOS], [4, 5, 6, 7, EOS]))
    targets = Lines(torch.tensor(line) for line in ([7, EOS], [8, EOS], [8, 9, 10, EOS]))
    pairs = ConcatenatedPairs(sources, targets, 5)
    assert len(pairs) == 2 and pairs.num_empty == 1 and pairs.num_cut == 1 and pairs.sizes.tolist() == [3, 4]
    assert [pairs[0].tolist(), pairs[1].tolist()] == [[5, 6, 7], [4, 5, 8, 9]]


def test_the_temperature_rises():
    schedule = TemperatureSchedule(1.0, 5.0, 5)
    assert [schedule.temperature(epoch) for epoch in range(1, 9)] == pytest.approx([1, 1.8, 2.6, 3.4, 4.2, 5, 5, 5])
    assert {TemperatureSchedule(5.0, 5.0, 3).temperature(epoch) for epoch in range(1, 9)} == {5.0}


def test_shares_by_hand():
    """Temperature 1: as in the data, 16 to 1; 2: like the square roots, 4 to 1; 4: like the fourth roots, 2 to 1."""
    sizes = np.array([1600, 100])
    assert TemperatureSchedule(1, 4, 3).shares(sizes, 1) == pytest.approx([16 / 17, 1 / 17])
    assert TemperatureSchedule(1, 4, 3).shares(sizes, 2) == pytest.approx([4 / 5, 1 / 5])
    assert TemperatureSchedule(1, 4, 3).shares(sizes, 4) == pytest.approx([2 / 3, 1 / 3])


def test_whole_counts():
    assert whole_counts(np.array([0.5, 0.3, 0.2]), 10).tolist() == [5, 3, 2]
    assert whole_counts(np.array([1 / 3, 1 / 3, 1 / 3]), 10).tolist() == [4, 3, 3]
    assert whole_counts(np.array([0.96, 0.02, 0.02]), 50).tolist() == [48, 1, 1]
    shares = np.random.default_rng(1).dirichlet(np.ones(20))
    counts = whole_counts(shares, 997)
    assert counts.sum() == 997 and (np.abs(counts - shares * 997) < 1).all()


def test_problems():
    assert TemperatureSchedule().problems() == []
    assert TemperatureSchedule(0.0, -1.0, 0).problems() == [
        "--first-temperature must be positive, but is 0",
        "--temperature must be at least --first-temperature (0), but is -1",
        "--temperature-epochs must be at least 1, but is 0",
    ]
