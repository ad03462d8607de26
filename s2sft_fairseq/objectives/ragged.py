"""Rows of unequal length without padding, and the random numbers of their values.

Rows are what NumPy lacks to treat the examples of a batch all at once.

A random number does not depend on what else is drawn. Each is a hash of what it is drawn for, after SplitMix64 (Steele,
Lea and Flood: Fast splittable pseudorandom number generators, OOPSLA 2014): the n-th number of a sequence is a mixture
of the bits of its state plus n times a constant, so that it can be had without those before it, and may itself be the
state of another sequence. Here the seed leads to the epoch, this to the example, this to the call, and this to the
token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Ragged:
    """Rows of unequal length, one after the other.

    Shape:
        B: rows, N: values of all rows, S: values of the longest.
    """

    values: np.ndarray
    """The values (N,)."""
    lengths: np.ndarray
    """The lengths of the rows, int64 (B,)."""

    @classmethod
    def of(cls, rows: Sequence[np.ndarray]) -> "Ragged":
        """Join rows, at least one, each (length,)."""
        return cls(np.concatenate(rows), np.fromiter(map(len, rows), np.int64, len(rows)))

    @classmethod
    def of_lengths(cls, lengths: np.ndarray) -> "Ragged":
        """Make rows of these lengths (B,), whose values do not matter."""
        return cls(np.zeros(int(lengths.sum())), lengths)

    def with_values(self, values: np.ndarray) -> "Ragged":
        """Return rows of the same lengths with other values (N,)."""
        return Ragged(values, self.lengths)

    def only(self, chosen: np.ndarray) -> "Ragged":
        """Return each row with the chosen ones of its values, bool (N,), alone."""
        return Ragged(self.values[chosen], np.bincount(self.row[chosen], minlength=len(self.lengths)))

    @cached_property
    def row(self) -> np.ndarray:
        """The number of the row in which each value stands (N,)."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def place(self) -> np.ndarray:
        """The place of each value in its row, from 0 (N,)."""
        starts = np.cumsum(self.lengths) - self.lengths
        place: np.ndarray = np.arange(len(self.values)) - starts[self.row]
        return place

    def between(self, first: Sequence[int], last: Sequence[int]) -> "Ragged":
        """Return each row with some values before it and some behind it."""
        around = len(first) + len(last)
        lengths = self.lengths + around
        starts = np.cumsum(lengths) - lengths
        values = np.empty(int(lengths.sum()), dtype=self.values.dtype)
        for place, value in enumerate(first):
            values[starts + place] = value
        for place, value in enumerate(last, -len(last)):
            values[starts + lengths + place] = value
        values[np.arange(len(self.values)) + around * self.row + len(first)] = self.values
        return Ragged(values, lengths)

    def rank(self) -> np.ndarray:
        """Return how many values of its row stand before each value when the row is sorted (N,)."""
        ranks = np.empty(len(self.values), dtype=np.int64)
        ranks[np.lexsort((self.values, self.row))] = self.place
        return ranks

    def padded(self, pad: int) -> np.ndarray:
        """Return the rows side by side (B, S), padded on their right."""
        rows = np.full((len(self.lengths), self.lengths.max()), pad, dtype=self.values.dtype)
        rows[self.is_real] = self.values
        return rows

    @cached_property
    def is_real(self) -> np.ndarray:
        """Tells values from padding in the padded rows: boolean (B, S), and true in the order of the values."""
        return np.arange(self.lengths.max()) < self.lengths[:, np.newaxis]


class Draws:
    """The random numbers of some examples in one epoch.

    What an example gets depends on (seed, epoch, example) and on how many calls there were before: neither on the
    other examples nor on their order. Whether an objective calls must therefore never depend on what is drawn.
    """

    def __init__(self, seed: int, epoch: int, examples: np.ndarray) -> None:
        """Begin anew for the examples with the given numbers (B,)."""
        state = np.array([seed]).astype(np.uint64)
        for number in (np.array([epoch]), examples):
            state = member(state, number)
        self._state = state
        self._calls = 0

    def random(self, rows: Ragged) -> np.ndarray:
        """Draw uniformly from [0, 1) for each value of ragged rows, a row for an example (N,)."""
        sequence = member(self._state, np.array([self._calls]))
        self._calls += 1
        # The higher 53 bits are what a double can hold.
        return (member(sequence[rows.row], rows.place) >> np.uint64(11)) * 2.0**-53

    def integers(self, high: int, rows: Ragged) -> np.ndarray:
        """Draw uniformly from 0 ... high - 1 for each value of ragged rows, a row for an example, int64 (N,)."""
        return (self.random(rows) * high).astype(np.int64)


def member(state: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Return the numbered members of the sequences that have these states, uint64; overflow is meant."""
    bits: np.ndarray = state + (number.astype(np.uint64) + np.uint64(1)) * _GAMMA
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = bits ^ (bits >> np.uint64(31))
    return bits
