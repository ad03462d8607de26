"""Neighbours of similar length in a batch, so that little is computed for padding."""

from collections.abc import Iterator, Sequence

# Padding of a group, at most, as a part of its positions.
MOST_PADDING = 1 / 8


def similar_lengths(lengths: Sequence[int]) -> Iterator[tuple[slice, int]]:
    """Yield groups of consecutive sentences, each as large as its padding allows, and the length of the longest in it.

    There are the fewer of them the better the sentences are sorted.

    Args:
        lengths: of the sentences.
    """
    start = longest = total = 0
    for index, length in enumerate(lengths):
        widest = max(longest, length)
        positions = widest * (index + 1 - start)
        if positions - total - length > MOST_PADDING * positions:
            yield slice(start, index), longest
            start, widest, total = index, length, 0
        longest, total = widest, total + length
    if start < len(lengths):
        yield slice(start, len(lengths)), longest
