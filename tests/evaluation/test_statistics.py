"""Intervals and tests, compared with closed forms and exhaustive enumeration."""

from itertools import product

import numpy as np
import pytest

from s2sft_fairseq.evaluation.statistics import Means, Statistics, Sums, confidence_intervals, differences


def test_the_interval_of_a_mean_is_that_of_the_normal_distribution():
    values = np.random.default_rng(1).random(500)
    low, high = confidence_intervals(Means({"x": values}), 500, 4000, 0)["x"]
    error = 100 * values.std() / np.sqrt(500)
    assert low == pytest.approx(100 * values.mean() - 1.96 * error, abs=0.15)
    assert high == pytest.approx(100 * values.mean() + 1.96 * error, abs=0.15)


def test_no_spread_no_interval_width():
    assert confidence_intervals(Means({"x": [0.5] * 9}), 9, 20, 0) == {"x": (50, 50)}


def test_the_seed_decides():
    statistics = Means({"x": np.arange(20) / 20})
    first, again, other = (confidence_intervals(statistics, 20, 50, seed) for seed in (1, 1, 2))
    assert first == again != other


def test_sums_are_recomputed_from_counts():
    # 1 of 1 right, and 0 of 9: the ratio of sums is 10 %, not the mean of 50 %.
    statistics = Sums([[1, 1], [0, 9]], lambda sums: {"x": 100 * sums[0] / sums[1]})
    assert statistics.over(np.array([0, 1])) == {"x": 10}
    assert statistics.over(np.array([0, 0])) == {"x": 100}
    assert confidence_intervals(statistics, 2, 200, 0)["x"] == (0, 100)


def test_the_p_value_is_that_of_all_exchanges():
    ours, theirs = np.array([0.9, 0.8, 0.7, 0.6, 0.9]), np.array([0.5, 0.7, 0.8, 0.3, 0.2])
    change = ours - theirs
    every = [abs(np.dot(signs, change)) for signs in product((1, -1), repeat=5)]
    expected = np.mean(np.array(every) >= abs(change.sum()) - 1e-12)
    found = differences(Means({"x": np.concatenate([ours, theirs])}), 5, 4000, 0)["x"]
    assert found.value == pytest.approx(100 * change.mean())
    assert found.p_value == pytest.approx(expected, abs=0.02)
    assert found.interval[0] < found.value < found.interval[1]


def test_a_system_does_not_differ_from_itself():
    found = differences(Means({"x": [0.1, 0.7, 0.3] * 2}), 3, 100, 0)["x"]
    assert (found.value, found.interval, found.p_value) == (0, (0, 0), 1)


def test_a_clear_difference():
    found = differences(Means({"x": [0.9] * 50 + [0.1] * 50}), 50, 999, 0)["x"]
    assert found.value == pytest.approx(80)
    assert found.p_value == 1 / 1000  # no exchange but the texts as they are


def test_statistics_that_cannot_be_resampled_have_a_test_but_no_interval():
    class Different(Statistics):
        resampling = False

        def over(self, chosen):
            return {"x": float(len(set(chosen.tolist())))}

    assert confidence_intervals(Different(), 3, 10, 0) == {}
    found = differences(Different(), 3, 10, 0)["x"]
    assert (found.interval, found.p_value) == (None, 1)
