"""Confidence intervals over seeds and test sentences, and tables of them, for all experiments."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Choice = NDArray[np.int64]
RESAMPLES = 1000


class Interval(NamedTuple):
    """A score and the limits of its 95 % interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"

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
    """Return the interval of a score, which varies with seeds and with sentences.

    The part from seeds is Student's t interval of the scores of single seeds: percentiles of resampled seeds would be
    too narrow, with five seeds 83 % in place of 95 %. The part from sentences is 1.96 standard deviations of the scores
    of resampled sentences. The two are added as standard deviations are.

    Args:
        score: computes the score over the seeds and sentences of these numbers, which may occur several times.
        seeds: number of seeds, S, at least 2.
        sentences: number of test sentences, N.
    """
    all_seeds, all_sentences = np.arange(seeds), np.arange(sentences)
    of_seeds = [score(all_seeds[number : number + 1], all_sentences) for number in range(seeds)]
    from_seeds = stats.t.ppf(0.975, seeds - 1) * np.std(of_seeds, ddof=1) / np.sqrt(seeds)
    random = np.random.default_rng(1)
    resampled = [score(all_seeds, random.integers(sentences, size=sentences)) for _ in range(RESAMPLES)]
    half = float(np.hypot(from_seeds, 1.96 * np.std(resampled)))
    value = score(all_seeds, all_sentences)
    return Interval(value, value - half, value + half)


def table(columns: Sequence[object], rows: Mapping[str, Sequence[object]]) -> str:
    """Return a Markdown table; the first column has the names of the rows."""
    lines = [["", *columns], ["---"] * (len(columns) + 1), *([name, *cells] for name, cells in rows.items())]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)
