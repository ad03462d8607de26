"""Rows of unequal length without padding, and random numbers for their values.

NumPy has no such rows. They make it possible to process all examples of a batch at once.

A random number does not depend on other draws. It is a hash of what it is drawn for, as in SplitMix64 (Steele, Lea and
Flood: Fast splittable pseudorandom number generators, OOPSLA 2014): the n-th number of a sequence is its state plus n
times a constant, with the bits mixed. So it is computed without the numbers before it, and may itself be the state of
another sequence. Here the seed is the first state; epoch, example, call and token are the numbers in turn.
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
        """Concatenate rows, at least one, each (length,)."""
        return cls(np.concatenate(rows), np.fromiter(map(len, rows), np.int64, len(rows)))

    @classmethod
    def of_lengths(cls, lengths: np.ndarray) -> "Ragged":
        """Return rows of these lengths (B,) with arbitrary values."""
        return cls(np.zeros(int(lengths.sum())), lengths)

    def with_values(self, values: np.ndarray) -> "Ragged":
        """Return rows of the same lengths with other values (N,)."""
        return Ragged(values, self.lengths)

    def only(self, chosen: np.ndarray) -> "Ragged":
        """Return each row with only the chosen values, bool (N,)."""
        return Ragged(self.values[chosen], np.bincount(self.row[chosen], minlength=len(self.lengths)))

    @cached_property
    def row(self) -> np.ndarray:
        """Index of the row of each value (N,)."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def place(self) -> np.ndarray:
        """Index of each value in its row, from 0 (N,)."""
        starts = np.cumsum(self.lengths) - self.lengths
        place: np.ndarray = np.arange(len(self.values)) - starts[self.row]
        return place

    def between(self, first: Sequence[int], last: Sequence[int]) -> "Ragged":
        """Return each row with the values ``first`` before it and ``last`` after it."""
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
        """Return the index of each value in its sorted row (N,)."""
        ranks = np.empty(len(self.values), dtype=np.int64)
        ranks[np.lexsort((self.values, self.row))] = self.place
        return ranks

    def padded(self, pad: int) -> np.ndarray:
        """Return the rows as a matrix (B, S), padded on the right."""
        rows = np.full((len(self.lengths), self.lengths.max()), pad, dtype=self.values.dtype)
        rows[self.is_real] = self.values
        return rows

    @cached_property
    def is_real(self) -> np.ndarray:
        """Mask of the padded rows, bool (B, S): true at values, in their order, and false at padding."""
        return np.arange(self.lengths.max()) < self.lengths[:, np.newaxis]


class Draws:
    """The random numbers of some examples in one epoch.

    The numbers of an example depend on (seed, epoch, example) and on the number of earlier calls, but not on the other
    examples or their order. So whether an objective makes a call must never depend on random numbers.
    """

    def __init__(self, seed: int, epoch: int, examples: np.ndarray) -> None:
        """Begin the sequences of some examples, given by their numbers in the data (B,)."""
        state = np.array([seed]).astype(np.uint64)
        for number in (np.array([epoch]), examples):
            state = member(state, number)
        self._state = state
        self._calls = 0

    def random(self, rows: Ragged) -> np.ndarray:
        """Draw uniformly from [0, 1) for each value of ragged rows (N,), a row for each example."""
        sequence = member(self._state, np.array([self._calls]))
        self._calls += 1
        # Use the upper 53 bits, the precision of a double.
        return (member(sequence[rows.row], rows.place) >> np.uint64(11)) * 2.0**-53

    def integers(self, high: int, rows: Ragged) -> np.ndarray:
        """Draw uniformly from 0 ... high - 1 for each value of ragged rows, int64 (N,), a row for each example."""
        return (self.random(rows) * high).astype(np.int64)


def member(state: np.ndarray, number: np.ndarray) -> np.ndarray:
    """Return the members with these numbers of the sequences with these states, uint64. Overflow is intended."""
    bits: np.ndarray = state + (number.astype(np.uint64) + np.uint64(1)) * _GAMMA
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = bits ^ (bits >> np.uint64(31))
    return bits
