"""Bigrams and trigrams of numbered words, as integer keys: count them in sorted files, and score them by the t-test.

Keys sort in the order of their words. Counting is external sorting, one range of keys at a time. Each run is a ``.npy``
file with an int64 array (2, K): the unique keys of the n-grams in a part of the text, ascending, and their counts. The
t-test is that of ERNIE-GEN (section 3.3, "Span-by-span Generation Flow").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

_BITS = 21
MAX_WORDS = (1 << _BITS) - 1
"""Maximum number of words: three numbers of 21 bits fill an int64, and the largest value is reserved."""


def bigram_keys(numbers: np.ndarray) -> np.ndarray:
    """Return the key of the bigram that begins at each word but the last, (W,) to (W - 1,).

    Args:
        numbers: numbers of the words; -1 for a word that is in no n-gram, which makes the key negative.
    """
    return numbers[:-1] << _BITS | numbers[1:]


def trigram_keys(bigrams: np.ndarray, numbers: np.ndarray) -> np.ndarray:
    """Return the key of the trigram that begins at each word but the last two, (W - 2,).

    Args:
        bigrams: the result of `bigram_keys`, (W - 1,); a negative key makes its trigrams negative.
        numbers: numbers of the words (W,).
    """
    keys = bigrams[:-1] << _BITS | numbers[2:]
    keys[(bigrams[:-1] < 0) | (bigrams[1:] < 0)] = -1
    return keys


def words_of_keys(keys: np.ndarray, order: int) -> np.ndarray:
    """Return the numbers of the words of n-grams of an order, (K,) to (K, order)."""
    shifts = _BITS * np.arange(order - 1, -1, -1)
    return keys[:, np.newaxis] >> shifts & MAX_WORDS


_END = np.iinfo(np.int64).max  # above any key


def write_run(path: Path, keys: np.ndarray) -> Path | None:
    """Count the n-grams of a part of the text.

    Args:
        path: path of the run, which ends in ``.npy``.
        keys: keys of all n-grams; negative ones are ignored.

    Returns:
        The path, or None if there is no n-gram.
    """
    found, counts = np.unique(keys[keys >= 0], return_counts=True)
    if not len(found):
        return None
    np.save(path, np.stack([found, counts]))
    return path


def key_ranges(runs: Sequence[Path], size: int) -> list[tuple[int, int]]:
    """Cut the keys of all runs into ranges (first key, end), the end exclusive.

    A range has at most `size` keys of all runs together, or three keys per run if that is more.
    """
    if not runs:
        return []
    # A sample stands for `step` keys of a run. A range has at most `step` keys of each run more than its samples stand
    # for. It has fewer than two samples per run: one on average, and at most one per run that equals its first sample.
    step = max(1, size // (3 * len(runs)))
    # Copy, so that the mapped files can leave the memory.
    samples = np.sort(np.concatenate([np.load(run, mmap_mode="r")[0, ::step].copy() for run in runs]))
    return list(pairwise([0, *samples[len(runs) :: len(runs)].tolist(), int(_END)]))


def merge_runs(runs: Sequence[Path], start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the unique keys from `start` up to `end` of all runs, ascending, and the sums of their counts.

    Shape:
        two int64 arrays (K,)
    """
    parts = []
    for run in runs:
        counted = np.load(run, mmap_mode="r")
        parts.append(counted[:, slice(*np.searchsorted(counted[0], [start, end]))].copy())
    keys, counts = np.concatenate(parts, axis=1)
    order = np.argsort(keys, kind="stable")  # fast, because the parts are sorted
    keys, counts = keys[order], counts[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[first], np.add.reduceat(counts, first) if len(first) else counts


def t_statistic(counts: np.ndarray, total: int, by_chance: np.ndarray) -> np.ndarray:
    """Return the t-statistics of n-grams under the hypothesis that their words are independent.

    ``t = (p - p') / sqrt(sigma^2 / N)`` with ``p = count / N`` and ``sigma^2 = p (1 - p)``. If all n-grams of the text
    are the same, ``sigma`` is 0 and t is infinite, or 0 if ``p = p'``.

    Args:
        counts: counts of n-grams of one order (K,).
        total: N, the number of all n-grams of this order in the text.
        by_chance: ``p'``, the products of the probabilities of their words (K,).
    """
    p = counts / total
    difference = p - by_chance
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(difference == 0, 0.0, difference / np.sqrt(p * (1 - p) / total))


@dataclass(frozen=True)
class Collocations:
    """N-grams of one order, with their counts and t-statistics.

    Shape:
        K: n-grams.
    """

    keys: np.ndarray
    """The keys of the n-grams, int64 (K,)."""
    counts: np.ndarray
    """Their counts, int64 (K,)."""
    t: np.ndarray
    """Their t-statistics, float64 (K,)."""

    @classmethod
    def none(cls) -> "Collocations":
        """Return an empty collection."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))

    @classmethod
    def joined(cls, parts: Sequence["Collocations"]) -> "Collocations":
        """Concatenate one or more parts."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("keys", "counts", "t")))

    def best(self, number: int) -> "Collocations":
        """Return at most `number` n-grams with the highest t, best first; ties are in the order of the words' ids.

        N-grams that are not more frequent than by chance (t <= 0) are left out.
        """
        order = np.lexsort((self.keys, -self.t))[:number]
        order = order[self.t[order] > 0]
        return Collocations(self.keys[order], self.counts[order], self.t[order])
