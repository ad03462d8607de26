"""Neighbours in a batch: of similar length, so that little is computed for padding, or of so many positions."""

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


def consecutive(lengths: Sequence[int], most: int) -> Iterator[tuple[slice, slice]]:
    """Yield groups of consecutive sentences, and the positions that they take up where all stand one after the other.

    Args:
        lengths: of the sentences.
        most: positions of a group, at most; one sentence may have more.
    """
    start = begin = end = 0
    for index, length in enumerate(lengths):
        if index > start and end + length - begin > most:
            yield slice(start, index), slice(begin, end)
            start, begin = index, end
        end += length
    if start < len(lengths):
        yield slice(start, len(lengths)), slice(begin, end)
