"""How often each language is sampled: by its share of the data, flattened by a temperature that may rise with time."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class TemperatureSchedule:
    """The temperature of each epoch, T_i = min(T, T0 + i / N * (T - T0)); i counts epochs from 0 (XLM-T, section 3).

    At temperature 1 languages are sampled as they are in the data, at higher ones more evenly.
    """

    first: float = 1.0
    """T0, the temperature of the first epoch."""
    last: float = 5.0
    """T, at least T0; the same as T0 for a temperature that does not change."""
    epochs: int = 5
    """N, how many epochs it takes to get from one to the other."""

    def problems(self) -> list[str]:
        """What is wrong with these values, a sentence each."""
        found = []
        if self.first <= 0:
            found.append(f"--first-temperature must be positive, but is {self.first:g}")
        if self.last < self.first:
            found.append(f"--temperature must be at least --first-temperature ({self.first:g}), but is {self.last:g}")
        if self.epochs < 1:
            found.append(f"--temperature-epochs must be at least 1, but is {self.epochs}")
        return found

    def temperature(self, epoch: int) -> float:
        """Return the temperature of an epoch; the first one is 1, as fairseq counts."""
        return min(self.last, self.first + (epoch - 1) / self.epochs * (self.last - self.first))

    def shares(self, sizes: np.ndarray, epoch: int) -> np.ndarray:
        """Return the share of each language in an epoch, (D_l / sum D)^(1/T_i) over the sum of these (languages,).

        Args:
            sizes: examples of each language, D (languages,).
            epoch: counted from 1.
        """
        flattened = (sizes / sizes.sum()) ** (1 / self.temperature(epoch))
        return flattened / flattened.sum()


def whole_counts(shares: np.ndarray, total: int) -> np.ndarray:
    """Return whole numbers that add up to ``total`` and are as near to their shares of it as whole numbers can be.

    Args:
        shares: what adds up to 1 (languages,).
        total: how many examples there are to share out.
    """
    exact = shares * total
    counts = np.floor(exact).astype(np.int64)
    largest_remainders = np.argsort(counts - exact, kind="stable")
    counts[largest_remainders[: total - int(counts.sum())]] += 1
    return counts
