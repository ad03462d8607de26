"""Bigrams and trigrams of numbered words: as single integers, counted in sorted files, and scored by the t-test.

The integers, keys, sort in the order of their words. Counting is external sorting, a range of keys at a time: each run
is a ``.npy`` file with an int64 array (2, K): the keys of the n-grams of a part of the text, ascending and each one
once, and how often each occurs there. The t-test is that of ERNIE-GEN (section 3.3, "Span-by-span Generation Flow").
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

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


_END = np.iinfo(np.int64).max  # above any key


def write_run(path: Path, keys: np.ndarray) -> Path | None:
    """Count the n-grams of a part of the text.

    Args:
        path: of the run, which ends in ``.npy``.
        keys: of all n-grams; negative ones do not count.

    Returns:
        The path, or None where nothing was to be written.
    """
    found, counts = np.unique(keys[keys >= 0], return_counts=True)
    if not len(found):
        return None
    np.save(path, np.stack([found, counts]))
    return path


def key_ranges(runs: Sequence[Path], size: int) -> list[tuple[int, int]]:
    """Cut the keys of all runs into ranges, from the first key of each up to, but without, its end.

    A range takes at most `size` keys of all the runs together, or three of each run where that is more.
    """
    if not runs:
        return []
    # A range has at most `step` keys more of each run than its samples stand for. It has fewer than two samples a run:
    # one on the average, and those that equal its first one, of which each run has one at most.
    step = max(1, size // (3 * len(runs)))
    # Copies: a file that is not mapped any more leaves the memory.
    samples = np.sort(np.concatenate([np.load(run, mmap_mode="r")[0, ::step].copy() for run in runs]))
    return list(pairwise([0, *samples[len(runs) :: len(runs)].tolist(), int(_END)]))


def merge_runs(runs: Sequence[Path], start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys from `start` up to `end` of all runs, ascending and each one once, and the sums of their counts.

    Shape:
        two int64 arrays (K,)
    """
    parts = []
    for run in runs:
        counted = np.load(run, mmap_mode="r")
        parts.append(counted[:, slice(*np.searchsorted(counted[0], [start, end]))].copy())
    keys, counts = np.concatenate(parts, axis=1)
    order = np.argsort(keys, kind="stable")  # fast where parts are sorted already
    keys, counts = keys[order], counts[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[first], np.add.reduceat(counts, first) if len(first) else counts


def t_statistic(counts: np.ndarray, total: int, by_chance: np.ndarray) -> np.ndarray:
    """Return how far n-grams are from the hypothesis that their words meet by chance.

    ``t = (p - p') / sqrt(sigma^2 / N)`` with ``p = count / N`` and ``sigma^2 = p (1 - p)``. Where all n-grams are the
    same, ``sigma`` is 0 and t is infinite, or 0 if that is what chance gives too.

    Args:
        counts: of n-grams of one order (K,).
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
    """Of the n-grams, int64 (K,)."""
    counts: np.ndarray
    """How often they occur, int64 (K,)."""
    t: np.ndarray
    """Their t-statistics, float64 (K,)."""

    @classmethod
    def none(cls) -> "Collocations":
        """Return no n-grams."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))

    @classmethod
    def joined(cls, parts: Sequence["Collocations"]) -> "Collocations":
        """Join n-grams, at least one part."""
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in ("keys", "counts", "t")))

    def best(self, number: int) -> "Collocations":
        """Return those with the highest t, best first; of equals those whose words have the smaller ids come first.

        N-grams that are not more frequent than by chance (t <= 0) are left out.
        """
        order = np.lexsort((self.keys, -self.t))[:number]
        order = order[self.t[order] > 0]
        return Collocations(self.keys[order], self.counts[order], self.t[order])
