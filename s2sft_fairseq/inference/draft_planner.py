"""What to draft: what pays, by the cost of a pass on this machine and by how often drafts turn out right."""

from typing import NamedTuple

import numpy as np

MOST_DRAFTS = 7
"""Tokens that are drafted at most: a block of eight."""
FIRST_DRAFTS = 3
"""Tokens that are drafted while nothing is known."""
PASSES_BETWEEN_TRIALS = 16
"""Every 16th pass looks one token further ahead than pays."""
_FORGET = 0.97
"""Weight of older passes, multiplied once for each newer pass."""
_BINS = 10
"""Probabilities are calibrated in this many bins of equal width."""
_PRIOR = 4
"""Drafts of each bin that are assumed at first, right as often as their probability says."""


class Plan(NamedTuple):
    """What a pass reads of each sentence beside its newest token."""

    drafts: int
    """Tokens that it verifies. A placeholder stands behind each, and one behind the text without drafts."""
    behind: tuple[int, ...]
    """The prefixes, by the number of drafts in them, behind which a block of placeholders drafts for the next pass."""
    ahead: int
    """Tokens that each of these blocks drafts. It has one placeholder more, for the next token."""

    def rows(self) -> int:
        """Return how many tokens and placeholders the pass reads of a sentence."""
        return 2 * (1 + self.drafts) + len(self.behind) * (self.ahead + 1 if self.ahead else 0)


class DraftPlanner:
    """Plans passes from those that it has seen, of any batch of one model.

    A row pays if it brings more tokens than could be written in its time otherwise: its price in tokens is the seconds
    that it takes, times the tokens per second of the search, or of one without drafts where that is faster.

    N: sentences, D: drafts of each.
    """

    def __init__(self) -> None:
        # Sums over passes for the least squares of seconds = a + b * rows: 1, rows, rows^2, seconds, rows * seconds.
        self._sums = np.zeros(5)
        self._tokens = 0.0
        # Drafts of each bin whose predecessors were all right, and how many of them were right too.
        self._tried = np.full(_BINS, float(_PRIOR))
        self._right = _PRIOR * (np.arange(_BINS) + 0.5) / _BINS
        # The chance that all of the first d + 1 drafts of a block are right.
        self._chances = 0.5 ** np.arange(1, MOST_DRAFTS + 1)
        self._passes = 0

    def observe(self, rows: int, seconds: float, probabilities: np.ndarray, right: np.ndarray) -> None:
        """Take in a pass.

        Args:
            rows: that it read, of all sentences.
            seconds: that it took.
            probabilities: which the model gave to the drafts (N, D).
            right: how many of them were right (N,).
        """
        self._sums = self._sums * _FORGET + np.array([1.0, rows, rows**2, seconds, rows * seconds])
        self._tokens = self._tokens * _FORGET + (right + 1).sum()
        number = np.arange(probabilities.shape[1])
        # The first wrong draft was tried as well. What a sentence without a block has instead of drafts was not.
        tried = (number <= right[:, None]) & (probabilities > 0)
        bins = _bins(probabilities)
        self._tried += np.bincount(bins[tried], minlength=_BINS)
        self._right += np.bincount(bins[tried & (number < right[:, None])], minlength=_BINS)
        self._passes += 1

    def plan(self, probabilities: np.ndarray) -> Plan:
        """Return what the next pass is to read, for drafts with the given probabilities (N, D); 0: there is none."""
        chances = np.cumprod(np.where(probabilities > 0, (self._right / self._tried)[_bins(probabilities)], 0), axis=1)
        drafted = chances[probabilities.any(axis=1)]
        if len(drafted):
            known = self._chances[: drafted.shape[1]]
            known += (1 - _FORGET) * (drafted.mean(axis=0) - known)
        price = self._price(len(probabilities))
        if price is None:
            drafts = probabilities.shape[1]
            return Plan(drafts, tuple(range(drafts + 1)), FIRST_DRAFTS)
        reached = chances.mean(axis=0)
        drafts = int((reached > 2 * price).sum())
        # The chance that the next text ends with each prefix.
        ends = -np.diff([1.0, *reached[:drafts], 0.0])
        # What a block of 1, 2, ... drafts is worth in the pass after the next one, and what it costs in the next one.
        worth = np.cumsum(np.maximum(self._chances - 2 * price, 0))
        costs = price * np.arange(2, MOST_DRAFTS + 2)
        gains = np.maximum(np.outer(ends, worth) - costs, 0)
        best = int(gains.sum(axis=0).argmax())
        behind, ahead = tuple(np.flatnonzero(gains[:, best]).tolist()), best + 1
        if self._passes % PASSES_BETWEEN_TRIALS == 0:
            return Plan(drafts, behind or (0,), min(ahead + 1, MOST_DRAFTS) if behind else 1)
        return Plan(drafts, behind, ahead if behind else 0)

    def _price(self, sentences: int) -> float | None:
        """Return what a row of one sentence costs, in tokens; None while all passes have equally many rows."""
        count, rows, squares, seconds, products = self._sums
        spread = count * squares - rows * rows
        if count < 2 or spread <= 1e-6 * count * squares:
            return None
        per_row = max(float((count * products - rows * seconds) / spread), 0.0)
        fixed = max((seconds - per_row * rows) / count, 1e-9)
        rate = max(self._tokens / max(seconds, 1e-9), sentences / (fixed + per_row * 2 * sentences))
        return per_row * rate


def _bins(probabilities: np.ndarray) -> np.ndarray:
    return np.minimum((probabilities * _BINS).astype(np.int64), _BINS - 1)
