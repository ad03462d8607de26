"""How many tokens to draft: as many as pay, by what a pass costs on this machine and how often drafts are right."""

import numpy as np

MOST_DRAFTS = 7
"""Tokens that are drafted at most: a block of eight."""
FIRST_DRAFTS = 3
"""Tokens that are drafted while nothing is known."""
PASSES_BETWEEN_TRIALS = 16
"""Every 16th pass tries one draft more or fewer. The cost of a row shows only in passes of different sizes."""
_FORGET = 0.98
"""Weight of older passes, multiplied once for each newer pass."""


def rows_of(drafts: int, ahead: int) -> int:
    """Return the tokens that a pass reads of a sentence: content, placeholders of the next token, and blocks ahead."""
    return 1 + drafts + (drafts + 1) * (1 + (ahead + 1 if ahead else 0))


class DraftPlanner:
    """Chooses the number of drafts from the passes that it has seen, of any batch of one model."""

    def __init__(self) -> None:
        # Sums over passes for the least squares of seconds = a + b * rows: 1, rows, rows^2, seconds, rows * seconds.
        self._sums = np.zeros(5)
        # How often all drafts before the d-th were right, and how often the d-th was right too.
        self._tried, self._right = np.ones(MOST_DRAFTS), np.full(MOST_DRAFTS, 0.5)
        self._passes = 0

    def observe(self, rows: int, seconds: float, drafted: int, right: np.ndarray) -> None:
        """Take in a pass.

        Args:
            rows: that it read, of all sentences.
            seconds: that it took.
            drafted: tokens of each sentence.
            right: how many of them were right (N,). N: sentences.
        """
        self._sums = self._sums * _FORGET + np.array([1.0, rows, rows**2, seconds, rows * seconds])
        self._tried *= _FORGET
        self._right *= _FORGET
        for draft in range(min(drafted, MOST_DRAFTS)):
            self._tried[draft] += (right >= draft).sum()
            self._right[draft] += (right > draft).sum()
        self._passes += 1

    def choose(self, sentences: int) -> int:
        """Return how many tokens to draft for each sentence of a batch."""
        fixed, per_row = self._cost()
        if per_row is None:
            return FIRST_DRAFTS
        # Tokens of a pass with 0, 1, ... drafts: one, and those that are right.
        tokens = 1 + np.concatenate([[0.0], np.cumsum(np.cumprod(self._right / self._tried))])
        rows = np.array([rows_of(drafts, drafts) for drafts in range(MOST_DRAFTS + 1)]) * sentences
        best = int((tokens / (fixed + per_row * rows)).argmax())
        trial, between = divmod(self._passes, PASSES_BETWEEN_TRIALS)
        if between:
            return best
        return min(best + 1, MOST_DRAFTS) if trial % 2 or not best else best - 1

    def _cost(self) -> tuple[float, float | None]:
        """Fit seconds = a + b * rows to the passes and return a and b; b is None while all passes have equal rows."""
        count, rows, squares, seconds, products = self._sums
        spread = count * squares - rows * rows
        if count < 2 or spread <= 1e-6 * count * squares:
            return 0.0, None
        per_row = max((count * products - rows * seconds) / spread, 0.0)
        return max((seconds - per_row * rows) / count, 1e-9), per_row
