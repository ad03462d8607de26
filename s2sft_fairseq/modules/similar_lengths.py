"""Sentences of a batch grouped by their lengths, so that little is computed for padding."""

from collections.abc import Iterator

from torch import Tensor

# Padding of a group, at most, as a part of its positions.
MOST_PADDING = 1 / 8


def similar_lengths(lengths: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Yield the indices of sentences of similar lengths, and the length of the longest of them.

    Args:
        lengths: of the sentences (N,).
    """
    ordered, order = lengths.sort(descending=True)
    values = ordered.tolist()
    start = 0
    for end in range(1, len(values) + 1):
        if end == len(values) or values[end] < (1 - MOST_PADDING) * values[start]:
            yield order[start:end], values[start]
            start = end
