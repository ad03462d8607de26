"""Bigrams and trigrams of numbered words as single integers, which sort in the order of their words."""

import numpy as np

_BITS = 21
MAX_WORDS = (1 << _BITS) - 1
"""So many words can be told apart: three numbers of 21 bits fill an int64, whose largest value is left free."""


def bigram_keys(numbers: np.ndarray) -> np.ndarray:
    """Return the key of the two words that begin at each word but the last, (W,) to (W - 1,).

    Args:
        numbers: of words, -1 for those that belong to no n-gram; then the key is negative.
    """
    return numbers[:-1] << _BITS | numbers[1:]


def trigram_keys(bigrams: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the key of the three words that begin at each word but the last two, (W - 2,).

    Args:
        bigrams: as `bigram_keys` returns them, (W - 1,); a negative one makes its trigrams negative.
        numbers: of the words (W,).
    """
    keys = bigrams[:-1] << _BITS | numbers[2:]
    keys[(bigrams[:-1] < 0) | (bigrams[1:] < 0)] = -1
    return keys


def words_of_keys(keys: np.ndarray, order: int) -> np.ndarray:
    """Return the numbers of the words of n-grams of an order, (K,) to (K, order)."""
    shifts = _BITS * np.arange(order - 1, -1, -1)
    return keys[:, np.newaxis] >> shifts & MAX_WORDS
