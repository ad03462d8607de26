"""Plan how many tokens to draft, from the cost of a pass on this machine and from how often drafts are right."""

from typing import NamedTuple

import numpy as np

MOST_DRAFTS = 7
"""Most tokens that a block drafts: a block of eight drafts seven."""
FIRST_DRAFTS = 3
"""Tokens that a block drafts until the cost of a pass can be estimated."""
PASSES_BETWEEN_TRIALS = 16
"""Every 16th pass drafts one token more than the plan, to see whether that pays."""
_FORGET = 0.97
"""The weight of all earlier passes is multiplied by this with each new pass."""
_BINS = 10
"""Number of bins of equal width in which probabilities are calibrated."""
_PRIOR = 4
"""Weight of the prior: drafts of a bin are right as often as their probability says, and passes take the seconds of the
fit."""
_MOST_ROWS = 256
"""For passes of more rows than this, the fit alone estimates the cost."""

# All possible plans, in a grid of verified drafts (0 to 7), blocks (0 to 8) and tokens that each block drafts (1 to 7).
_D, _BLOCKS, _AHEAD = np.ogrid[: MOST_DRAFTS + 1, : MOST_DRAFTS + 2, 1 : MOST_DRAFTS + 1]
_ROWS = 2 * (1 + _D) + _BLOCKS * (_AHEAD + 1)
_TOO_MANY = np.where(_BLOCKS > _D + 1, -np.inf, 0.0)
_LOWER, _DIAGONAL = np.tril(np.ones((MOST_DRAFTS + 1,) * 2), -1), np.eye(MOST_DRAFTS + 1)


class Plan(NamedTuple):
    """The tokens and placeholders that a pass reads of each sentence, besides its newest token."""

    drafts: int
    """Tokens that it verifies. A placeholder follows each of them, and one follows the text without drafts."""
    behind: tuple[int, ...]
    """The prefixes, given by their number of drafts, after which a block of placeholders drafts for the next pass."""
    ahead: int
    """Tokens that each of these blocks drafts. It has one placeholder more, for the next token."""

    def rows(self) -> int:
        """Return how many tokens and placeholders the pass reads of a sentence."""
        return 2 * (1 + self.drafts) + len(self.behind) * (self.ahead + 1 if self.ahead else 0)


class DraftPlanner:
    """Plans the next pass from the earlier passes of one model, in all its batches.

    It takes the plan with the largest gain: the expected tokens of the pass, plus the tokens that its blocks are
    expected to add to the next pass, minus its seconds times a rate. The rate is the tokens per second of the search so
    far, or of a search without drafts if that is faster.

    N: sentences, D: drafts of each sentence.
    """

    def __init__(self) -> None:
        # Sums over passes for the least squares of seconds = a + b * rows: 1, rows, rows^2, seconds, rows * seconds.
        self._sums = np.zeros(5)
        # Passes of each number of rows, and how many seconds they took beyond the fit: time rises in steps, not evenly.
        self._count, self._longer = np.zeros(_MOST_ROWS + 1), np.zeros(_MOST_ROWS + 1)
        self._tokens = 0.0
        # Drafts of each bin that only right drafts precede, and how many of these drafts were right.
        self._tried = np.full(_BINS, float(_PRIOR))
        self._right = _PRIOR * (np.arange(_BINS) + 0.5) / _BINS
        # The chance that all of the first d + 1 drafts of a block are right.
        self._chances = 0.5 ** np.arange(1, MOST_DRAFTS + 1)
        self._passes = 0

    def observe(self, rows: int, seconds: float, probabilities: np.ndarray, right: np.ndarray) -> None:
        """Record a pass.

        Args:
            rows: the rows that the pass read, of all sentences.
            seconds: the time that it took.
            probabilities: the probabilities that the model gave to the drafts (N, D).
            right: how many drafts of each sentence were right (N,).
        """
        if rows <= _MOST_ROWS and (cost := self._cost()) is not None:
            self._count *= _FORGET
            self._longer *= _FORGET
            self._count[rows] += 1
            self._longer[rows] += seconds - cost[0] - cost[1] * rows
        self._sums = self._sums * _FORGET + np.array([1.0, rows, rows**2, seconds, rows * seconds])
        self._tokens = self._tokens * _FORGET + len(right) + int(right.sum())
        number = np.arange(probabilities.shape[1])
        # The first wrong draft was tried, too. A sentence without a block has padding in place of drafts.
        tried = (number <= right[:, None]) & (probabilities > 0)
        bins = _bins(probabilities)
        self._tried += np.bincount(bins[tried], minlength=_BINS)
        self._right += np.bincount(bins[tried & (number < right[:, None])], minlength=_BINS)
        self._passes += 1

    def plan(self, probabilities: np.ndarray) -> Plan:
        """Choose what the next pass reads.

        Args:
            probabilities: the probabilities of the present drafts (N, D); 0 where a sentence has no draft.
        """
        sentences, most = probabilities.shape
        chances = np.cumprod(np.where(probabilities > 0, (self._right / self._tried)[_bins(probabilities)], 0), axis=1)
        drafted = chances[probabilities.any(axis=1)]
        if len(drafted):
            self._chances[:most] += (1 - _FORGET) * (drafted.mean(axis=0) - self._chances[:most])
        cost = self._cost()
        if cost is None:
            return Plan(most, tuple(range(most + 1)), FIRST_DRAFTS)
        fixed, per_row = cost
        rate = max(self._tokens / self._sums[3], sentences / (fixed + per_row * 2 * sentences))
        # reached[d]: the chance that the first d drafts are right.
        # ends[d, j]: the chance that of d verified drafts exactly the first j are right.
        count = most + 1
        reached, stops = np.ones(count), np.zeros(count)
        reached[1:] = chances.mean(axis=0)
        stops[:-1] = reached[:-1] - reached[1:]
        ends = _LOWER[:count, :count] * stops + _DIAGONAL[:count, :count] * reached
        # covered[d, n]: the chance that a pass ends at one of the n most probable prefixes, each followed by a block.
        covered = np.zeros((count, count + 1))
        np.cumsum(-np.sort(-ends, axis=1), axis=1, out=covered[:, 1:])
        # Tokens that a block of 1, 2, ... drafts adds to the next pass, minus the cost of the rows that verify them.
        worth = np.cumsum(np.maximum(self._chances - 2 * per_row * rate, 0))
        tokens = np.cumsum(reached)[:, None, None] + covered[:, :, None] * worth
        gain = sentences * tokens - rate * self._seconds(sentences * _ROWS[:count, : count + 1], fixed, per_row)
        gain += _TOO_MANY[:count, : count + 1]
        verified, placed, best = (int(index) for index in np.unravel_index(int(gain.argmax()), gain.shape))
        behind, longer = tuple(sorted(np.argsort(-ends[verified], kind="stable")[:placed].tolist())), best + 1
        if self._passes % PASSES_BETWEEN_TRIALS == 0:
            return Plan(verified, behind or (0,), min(longer + 1, MOST_DRAFTS) if behind else 1)
        return Plan(verified, behind, longer if behind else 0)

    def _cost(self) -> tuple[float, float] | None:
        """Fit seconds = a + b * rows to the passes; return a and b, or None while all passes have the same rows."""
        count, rows, squares, seconds, products = self._sums
        spread = count * squares - rows * rows
        if count < 2 or spread <= 1e-6 * count * squares:
            return None
        per_row = max(float((count * products - rows * seconds) / spread), 0.0)
        return max(float(seconds - per_row * rows) / count, 1e-9), per_row

    def _seconds(self, rows: np.ndarray, fixed: float, per_row: float) -> np.ndarray:
        """Estimate the seconds of passes from their numbers of rows."""
        longer = self._longer / (self._count + _PRIOR)
        return fixed + per_row * rows + np.where(rows <= _MOST_ROWS, longer[np.minimum(rows, _MOST_ROWS)], 0.0)


def _bins(probabilities: np.ndarray) -> np.ndarray:
    return np.minimum((probabilities * _BINS).astype(np.int64), _BINS - 1)
