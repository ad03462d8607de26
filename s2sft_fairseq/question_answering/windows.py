"""Sliding windows over passages that are too long to be read as a whole, as in BERT's program for SQuAD."""

import numpy as np

Window = tuple[int, int]
"""The first token of a window, and how many it has."""


def slide(length: int, room: int, stride: int) -> list[Window]:
    """Return windows over a passage; a passage that fits has one.

    Args:
        length: tokens of the passage.
        room: most tokens of a window.
        stride: tokens from the beginning of a window to that of the next; windows are never apart.
    """
    windows = [(0, min(length, room))]
    while sum(windows[-1]) < length:
        start, size = windows[-1]
        start += min(size, stride)
        windows.append((start, min(length - start, room)))
    return windows


def windows_of_most_context(length: int, windows: list[Window]) -> np.ndarray:
    """Return the number of the window in which each token of a passage has the most context (length,).

    Context is the lesser of what stands to its left and to its right in the window; of equal ones the longer window
    counts, then the first one. Answers begin in this window of their first token alone.
    """
    tokens = np.arange(length)
    scores = np.full((len(windows), length), -1.0)
    for number, (start, size) in enumerate(windows):
        inside = tokens[start : start + size]
        scores[number, inside] = np.minimum(inside - start, start + size - 1 - inside) + 0.01 * size
    return scores.argmax(axis=0)
