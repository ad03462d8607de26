"""Rows of unequal length without padding: what NumPy lacks to treat the examples of a batch all at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


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

    def with_values(self, values: np.ndarray) -> "Ragged":
        """Return rows of the same lengths with other values (N,)."""
        return Ragged(values, self.lengths)

    @cached_property
    def row(self) -> np.ndarray:
        """The number of the row in which each value stands (N,)."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def place(self) -> np.ndarray:
        """The place of each value in its row, from 0 (N,)."""
        starts = np.cumsum(self.lengths) - self.lengths
        return np.arange(len(self.values)) - starts[self.row]

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
