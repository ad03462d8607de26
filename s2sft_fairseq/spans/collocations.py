"""Which n-grams belong together: the t-test of ERNIE-GEN (section 3.3, "Span-by-span Generation Flow")."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


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
