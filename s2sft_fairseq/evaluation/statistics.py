"""Statistics of each example, from which scores, confidence intervals and tests of differences are computed.

A metric returns statistics, and these give the scores over any choice of the examples. Bootstrap resampling and
randomization tests need no more, so that texts are processed only once.

Confidence intervals are percentiles of bootstrap resamples (Efron 1979; Koehn 2004 for corpus-level scores of text).
Approximate randomization (Noreen 1989; Riezler and Maxwell 2005) tests whether the difference of two systems is chance:
it exchanges the two outputs of each example with probability 1/2.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from types import ModuleType

import numpy as np

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.progress import bar

ABOUT_ZERO = 5.0
"""Scores in percent below this say nothing about equal texts: BLEU of two words, smoothed, is about 0.1, not 0."""


class Statistics(ABC):
    """Statistics of N examples."""

    resampling = True
    """Whether resamples with repetitions give a valid confidence interval of the scores."""

    @abstractmethod
    def over(self, chosen: np.ndarray) -> dict[str, float]:
        """Return the scores, in percent, over the examples with the numbers `chosen` [n]."""

    def zeros(self, chosen: np.ndarray) -> dict[str, np.ndarray]:
        """Return, for each score, the numbers of the chosen examples that score about 0: all of them, or none."""
        return {name: chosen if score < ABOUT_ZERO else chosen[:0] for name, score in self.over(chosen).items()}


class Means(Statistics):
    """Metrics that are the mean of one value per example, such as ROUGE."""

    def __init__(self, values: Mapping[str, Sequence[float]]) -> None:
        """Store, for each score, the values [N] of the examples, 0 to 1."""
        self.values = {name: np.asarray(of_examples, dtype=float) for name, of_examples in values.items()}

    def over(self, chosen: np.ndarray) -> dict[str, float]:
        """Return the means over the chosen examples, see `Statistics.over`."""
        return {name: 100 * float(of_examples[chosen].mean()) for name, of_examples in self.values.items()}

    def zeros(self, chosen: np.ndarray) -> dict[str, np.ndarray]:
        """Return the numbers of the chosen examples that score 0, see `Statistics.zeros`."""
        return {name: chosen[of_examples[chosen] == 0] for name, of_examples in self.values.items()}


class Sums(Statistics):
    """Metrics that are functions of counts added up over the examples, such as BLEU."""

    def __init__(self, counts: Sequence[Sequence[float]], scores: Callable[[np.ndarray], dict[str, float]]) -> None:
        """Store the counts [N, C], and the function from their sums [C] to the scores."""
        self.counts = np.asarray(counts)
        self.scores = scores

    def over(self, chosen: np.ndarray) -> dict[str, float]:
        """Return the scores over the chosen examples, see `Statistics.over`."""
        return self.scores(self.counts[chosen].sum(axis=0))


@dataclass(frozen=True)
class Measured:
    """The result of a metric: statistics of the examples, and a signature, ``name:value|name:value``."""

    statistics: Statistics
    signature: str


LEVEL = 95  # percent
Interval = tuple[float, float]


@dataclass(frozen=True)
class Difference:
    """The score of a system minus the score of its baseline."""

    value: float
    interval: Interval | None
    """The confidence interval from paired resamples; None if the metric cannot be resampled."""
    p_value: float
    """Share of exchanges with at least this difference, in either direction."""


def confidence_intervals(statistics: Statistics, size: int, resamples: int, seed: int) -> dict[str, Interval]:
    """Return the interval of each score over `size` examples; empty if the metric cannot be resampled."""
    if not statistics.resampling:
        return {}
    return _intervals([statistics.over(chosen) for chosen in _resamples(size, resamples, seed)])


def differences(both: Statistics, size: int, resamples: int, seed: int) -> dict[str, Difference]:
    """Compare a system with a baseline.

    Args:
        both: statistics of 2 * `size` examples, first those of the system, then those of the baseline.
        size: number of examples of each.
        resamples: number of bootstrap resamples, and of exchanges of the randomization test.
        seed: seed of both.
    """
    examples = np.arange(size)

    def difference(ours: np.ndarray, theirs: np.ndarray) -> dict[str, float]:
        baseline = both.over(theirs)
        return {name: score - baseline[name] for name, score in both.over(ours).items()}

    observed = difference(examples, examples + size)
    generator = np.random.default_rng(seed)
    extreme = dict.fromkeys(observed, 0)
    for _ in bar(range(resamples), "exchanges", " samples"):
        moved = size * generator.integers(2, size=size)
        for name, value in difference(examples + moved, examples + (size - moved)).items():
            extreme[name] += abs(value) >= abs(observed[name]) - 1e-9  # tolerate rounding errors of equal differences
    intervals = {}
    if both.resampling:
        draws = _resamples(size, resamples, seed)
        intervals = _intervals([difference(chosen, chosen + size) for chosen in draws])
    # Add one for the outputs as they are, which is one of the possible exchanges: p is never 0.
    return {
        name: Difference(value, intervals.get(name), (extreme[name] + 1) / (resamples + 1))
        for name, value in observed.items()
    }


def _resamples(size: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Yield numbers of examples drawn with replacement, [size] each."""
    generator = np.random.default_rng(seed)
    for _ in bar(range(resamples), "bootstrap", " samples"):
        yield generator.integers(size, size=size)


def _intervals(scores: list[dict[str, float]]) -> dict[str, Interval]:
    tail = (100 - LEVEL) / 2
    intervals = {}
    for name in scores[0]:
        low, high = np.percentile([of_resample[name] for of_resample in scores], [tail, 100 - tail])
        intervals[name] = (float(low), float(high))
    return intervals


def optional_module(name: str, package: str, value: str, option: str = "--metrics") -> ModuleType:
    """Import the module `name` of `package`, which the value `value` of `option` needs.

    Raises:
        UserError: the package is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError:
        text = f"{option} {value} needs the package {package}, which is not installed: pip install {package}"
        raise UserError(text) from None


def tool(package: str) -> str:
    """Return the beginning of a signature: the package and its version."""
    return f"tool:{package}|version:{version(package)}"
