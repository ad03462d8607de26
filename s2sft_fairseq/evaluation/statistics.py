"""What metrics return: statistics of each example, from which follow scores, their intervals and differences.

Scores over any choice of the examples follow from the statistics. That is all that bootstrap resampling and
randomization tests need: nothing is computed from text a second time.

Confidence intervals are percentiles of bootstrap resamples (Efron 1979; Koehn 2004 for corpus-level scores of text).
That the difference of two systems is chance is tested by approximate randomization (Noreen 1989; Riezler and Maxwell
2005): the two outputs of every example change places with probability 1/2.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from types import ModuleType

import numpy as np

from s2sft_fairseq.errors import UserError


class Statistics(ABC):
    """Statistics of N examples."""

    resampling = True
    """Whether the score over a resample with repetitions says something about the score."""

    @abstractmethod
    def over(self, chosen: np.ndarray) -> dict[str, float]:
        """Return the scores, in percent, over the examples with the numbers `chosen` [n]."""


class Means(Statistics):
    """Metrics that are means of a value an example, such as ROUGE."""

    def __init__(self, values: Mapping[str, Sequence[float]]) -> None:
        """Take for each score the shares [N] of the examples, 0 to 1."""
        self.values = {name: np.asarray(of_examples, dtype=float) for name, of_examples in values.items()}

    def over(self, chosen: np.ndarray) -> dict[str, float]:
        return {name: 100 * float(of_examples[chosen].mean()) for name, of_examples in self.values.items()}


class Sums(Statistics):
    """Metrics that are functions of counts added up over the examples, such as BLEU."""

    def __init__(self, counts: Sequence[Sequence[float]], scores: Callable[[np.ndarray], dict[str, float]]) -> None:
        """Take the counts [N, C], and the function from their sums [C] to the scores."""
        self.counts = np.asarray(counts)
        self.scores = scores

    def over(self, chosen: np.ndarray) -> dict[str, float]:
        return self.scores(self.counts[chosen].sum(axis=0))


@dataclass(frozen=True)
class Measured:
    """What a metric makes of examples: its statistics, and how it was computed, as ``name:value|name:value``."""

    statistics: Statistics
    signature: str


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


def optional_module(name: str, package: str, value: str, option: str = "--metrics") -> ModuleType:
    """Import the module `name` of `package`, which this value of an option needs.

    Raises:
        UserError: it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError:
        text = f"{option} {value} needs the package {package}, which is not installed: pip install {package}"
        raise UserError(text) from None


def tool(package: str) -> str:
    """The beginning of a signature."""
    return f"tool:{package}|version:{version(package)}"
