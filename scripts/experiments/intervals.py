"""Confidence intervals over seeds and test sentences, for all experiments."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Choice = NDArray[np.int64]
RESAMPLES = 2000


class Interval(NamedTuple):
    """A mean and the limits of its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})"

    @property
    def verdict(self) -> str:
        """For a difference: whether the interval leaves out 0."""
        if self.low > 0:
            return "higher"
        return "lower" if self.high < 0 else "not resolved"


def interval(values: NDArray[np.float64]) -> Interval:
    """Return the interval of the mean of scores by seed and sentence, or of paired differences of two systems.

    Args:
        values: (S, N). S: seeds, N: test sentences, the same for each seed.
    """
    seeds, sentences = values.shape
    return interval_of(lambda chosen, of_each: float(values[chosen][:, of_each].mean()), seeds, sentences)


def interval_of(score: Callable[[Choice, Choice], float], seeds: int, sentences: int) -> Interval:
    """Return the interval of a score.

    Each resample draws seeds and sentences with replacement, independently of each other: scores vary with both.

    Args:
        score: computes the score over the seeds and sentences of these numbers, which may occur several times.
        seeds: number of seeds.
        sentences: number of test sentences.
    """
    random = np.random.default_rng(1)
    drawn = [
        score(random.integers(seeds, size=seeds), random.integers(sentences, size=sentences)) for _ in range(RESAMPLES)
    ]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return Interval(score(np.arange(seeds), np.arange(sentences)), float(low), float(high))
