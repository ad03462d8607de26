"""Confidence intervals and the difference between two systems.

Intervals are percentiles of bootstrap resamples (Efron 1979; Koehn 2004 for corpus-level scores of text). That the
difference of two systems is chance is tested by approximate randomization (Noreen 1989; Riezler and Maxwell 2005): the
two outputs of every example change places with probability 1/2.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from s2sft_fairseq.evaluation.statistics import Statistics

LEVEL = 95  # percent
Interval = tuple[float, float]


@dataclass(frozen=True)
class Difference:
    """A score of a system less that of its baseline."""

    value: float
    interval: Interval | None
    """Of paired resamples; None where resampling says nothing."""
    p_value: float
    """Share of exchanges that give at least this difference, in either direction."""


def confidence_intervals(statistics: Statistics, size: int, resamples: int, seed: int) -> dict[str, Interval]:
    """Return the interval of each score over `size` examples; none where resampling says nothing."""
    if not statistics.resampling:
        return {}
    return _intervals([statistics.over(chosen) for chosen in _resamples(size, resamples, seed)])


def differences(both: Statistics, size: int, resamples: int, seed: int) -> dict[str, Difference]:
    """Compare a system with a baseline.

    Args:
        both: statistics of 2 * `size` examples, those of the system first, then the same ones of the baseline.
        size: number of examples of each.
        resamples: of the bootstrap, and exchanges of the randomization test.
        seed: of the draws.
    """
    examples = np.arange(size)

    def difference(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
        baseline = both.over(theirs)
        return {name: score - baseline[name] for name, score in both.over(ours).items()}

    observed = difference(examples, examples + size)
    generator = np.random.default_rng(seed)
    extreme = dict.fromkeys(observed, 0)
    for _ in range(resamples):
        moved = size * generator.integers(2, size=size)
        for name, value in difference(examples + moved, examples + (size - moved)).items():
            extreme[name] += abs(value) >= abs(observed[name]) - 1e-9  # equal ones differ by rounding
    intervals = {}
    if both.resampling:
        draws = _resamples(size, resamples, seed)
        intervals = _intervals([difference(chosen, chosen + size) for chosen in draws])
    # One is added for the outputs as they are, which are an exchange too: p is never 0.
    return {
        name: Difference(value, intervals.get(name), (extreme[name] + 1) / (resamples + 1))
        for name, value in observed.items()
    }


def _resamples(size: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Yield numbers of examples drawn with replacement, [size] each."""
    generator = np.random.default_rng(seed)
    for _ in range(resamples):
        yield generator.integers(size, size=size)


def _intervals(scores: list[dict[str, float]]) -> dict[str, Interval]:
    tail = (100 - LEVEL) / 2
    intervals = {}
    for name in scores[0]:
        low, high = np.percentile([of_resample[name] for of_resample in scores], [tail, 100 - tail])
        intervals[name] = (float(low), float(high))
    return intervals
