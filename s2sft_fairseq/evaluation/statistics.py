"""Per-example statistics of a metric, from which its scores over any choice of the examples follow.

That is all that bootstrap resampling and randomization tests need: nothing is computed from text a second time.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np


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
