"""N-grams as integers."""

import numpy as np
import pytest

from s2sft_fairseq.spans.ngram_keys import MAX_WORDS, bigram_keys, trigram_keys, words_of_keys


def test_keys_tell_their_words_and_sort_like_them():
    rng = np.random.default_rng(1)
    numbers = np.concatenate([rng.integers(0, MAX_WORDS, 500), rng.integers(0, 3, 500), [MAX_WORDS - 1] * 3])
    bigrams = bigram_keys(numbers)
    trigrams = trigram_keys(bigrams, numbers)
    for order, keys in ((2, bigrams), (3, trigrams)):
        words = np.lib.stride_tricks.sliding_window_view(numbers, order)
        assert (words_of_keys(keys, order) == words).all()
        assert words[np.argsort(keys, kind="stable")].tolist() == sorted(words.tolist())
    assert trigrams.min() >= 0 and trigrams.max() < np.iinfo(np.int64).max


def test_no_key_with_a_word_without_a_number():
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
