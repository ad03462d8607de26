"""N-grams as integers, their counts in sorted files, and the t-test by hand."""

from collections import Counter

import numpy as np
import pytest

from s2sft_fairseq.spans.ngrams import (
    MAX_WORDS,
    Collocations,
    bigram_keys,
    key_ranges,
    merge_runs,
    t_statistic,
    trigram_keys,
    words_of_keys,
    write_run,
)


@pytest.fixture
def make_runs(tmp_path):
    """Write runs of keys drawn from few and many, and count all keys."""

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


def test_no_runs(tmp_path):
    assert write_run(tmp_path / "a.npy", np.array([-1, -5])) is None
    assert list(tmp_path.iterdir()) == []
    assert key_ranges([], 10) == []


def test_a_range_without_keys(tmp_path):
    run = write_run(tmp_path / "a.npy", np.array([5, 3, 5, -1]))
    keys, counts = merge_runs([run], 6, 9)
    assert keys.tolist() == counts.tolist() == []
    keys, counts = merge_runs([run], 0, 6)
    assert (keys.tolist(), counts.tolist()) == ([3, 5], [1, 2])


def test_keys_encode_their_words_and_sort_like_them():
    rng = np.random.default_rng(1)
    numbers = np.concatenate([rng.integers(0, MAX_WORDS, 500), rng.integers(0, 3, 500), [MAX_WORDS - 1] * 3])
    bigrams = bigram_keys(numbers)
    trigrams = trigram_keys(bigrams, numbers)
    for order, keys in ((2, bigrams), (3, trigrams)):
        words = np.lib.stride_tricks.sliding_window_view(numbers, order)
        assert (words_of_keys(keys, order) == words).all()
        assert words[np.argsort(keys, kind="stable")].tolist() == sorted(words.tolist())
    assert trigrams.min() >= 0 and trigrams.max() < np.iinfo(np.int64).max


def test_words_without_a_number_have_no_key():
    numbers = np.array([5, MAX_WORDS - 1, -1, 0, 1, 2, -1, -1, 7])
    bigrams = bigram_keys(numbers)
    assert (bigrams >= 0).tolist() == [True, False, False, True, True, False, False, False]
    assert (trigram_keys(bigrams, numbers) >= 0).tolist() == [False, False, False, True, False, False, False]


@pytest.mark.parametrize("words", [0, 1, 2])
def test_few_words(words):
    numbers = np.arange(words)
    bigrams = bigram_keys(numbers)
    assert len(bigrams) == max(0, words - 1)
    assert len(trigram_keys(bigrams, numbers)) == 0


def test_t_statistic_by_hand():
    # "new companies" of Manning and Schütze (section 5.3.1), who use p for the variance p (1 - p): t = 0.999932.
    total = 14_307_668
    t = t_statistic(np.array([8]), total, np.array([15828 / total * 4675 / total]))
    assert t.tolist() == pytest.approx([0.999932], abs=1e-6)
    # p = 6 / 10, by chance 0.16: 0.44 / sqrt(0.24 / 10)
    assert t_statistic(np.array([6]), 10, np.array([0.16])).tolist() == pytest.approx([2.840188])
    # less frequent than by chance: (0.1 - 0.5) / sqrt(0.09 / 10)
    assert t_statistic(np.array([1]), 10, np.array([0.5])).tolist() == pytest.approx([-4.216370])


def test_all_ngrams_the_same():
    assert t_statistic(np.array([7, 7]), 7, np.array([0.25, 1.0])).tolist() == [np.inf, 0.0]


def test_the_best_ngrams():
    some = Collocations(np.array([7, 3, 9, 1, 5]), np.arange(5), np.array([2.0, np.inf, 2.0, 0.0, -1.0]))
    best = some.best(2)
    assert (best.keys.tolist(), best.counts.tolist(), best.t.tolist()) == ([3, 7], [1, 0], [np.inf, 2.0])
    assert some.best(100).keys.tolist() == [3, 7, 9]
    assert Collocations.joined([some.best(1), Collocations.none(), some.best(0), best]).keys.tolist() == [3, 3, 7]
