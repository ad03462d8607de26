"""The t-test, by hand."""

import numpy as np
import pytest

from s2sft_fairseq.spans.collocations import Collocations, t_statistic


def test_t_statistic_by_hand():
    # "new companies" of Manning and Schütze (section 5.3.1), who take p for its variance p (1 - p): t = 0.999932.
    total = 14_307_668
    t = t_statistic(np.array([8]), total, np.array([15828 / total * 4675 / total]))
    assert t.tolist() == pytest.approx([0.999932], abs=1e-6)
    # p = 6 / 10, by chance 0.16: 0.44 / sqrt(0.24 / 10)
    assert t_statistic(np.array([6]), 10, np.array([0.16])).tolist() == pytest.approx([2.840188])
    # less than by chance: (0.1 - 0.5) / sqrt(0.09 / 10)
    assert t_statistic(np.array([1]), 10, np.array([0.5])).tolist() == pytest.approx([-4.216370])


def test_all_ngrams_the_same():
    assert t_statistic(np.array([7, 7]), 7, np.array([0.25, 1.0])).tolist() == [np.inf, 0.0]


def test_the_best_of_equals_and_of_those_by_chance():
    some = Collocations(np.array([7, 3, 9, 1, 5]), np.arange(5), np.array([2.0, np.inf, 2.0, 0.0, -1.0]))
    best = some.best(2)
    assert (best.keys.tolist(), best.counts.tolist(), best.t.tolist()) == ([3, 7], [1, 0], [np.inf, 2.0])
    assert some.best(100).keys.tolist() == [3, 7, 9]
    assert Collocations.joined([some.best(1), Collocations.none(), some.best(0), best]).keys.tolist() == [3, 3, 7]
