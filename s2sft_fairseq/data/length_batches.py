"""Batches of examples of similar length, filled up to a budget of positions; there is no padding to count."""

import math
from collections.abc import Sequence

import numpy as np

BUCKET_RATIO = 1.1
"""Upper bound of the ratio between the longest and the shortest example of a bucket."""


def bucketed_order(sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Order examples by buckets of similar length, the shortest first, at random within a bucket.

    Batches cut from this order have examples of similar length, but different ones in each epoch.

    Args:
        sizes: length of each example (N,), at least 1.
        rng: random number generator for the order within buckets.

    Returns:
        The indices of all examples (N,).
    """
    # A table with one logarithm per length is much cheaper than one logarithm per example.
    lengths = np.arange(1, sizes.max(initial=0) + 1)
    bucket = np.floor(np.log(lengths) / math.log(BUCKET_RATIO)).astype(np.int16)
    order = rng.permutation(len(sizes))
    return order[np.argsort(bucket[sizes[order] - 1], kind="stable")]


def cut_into_batches(sizes: np.ndarray, max_tokens: int | None, max_sentences: int | None, multiple: int) -> np.ndarray:
    """Cut a sequence of examples into batches, each as large as possible.

    The number of examples of a batch is a multiple of ``multiple`` if that many fit. The last batch has all remaining
    examples, so it may have any number.

    Args:
        sizes: length of each example (N,), none above ``max_tokens``.
        max_tokens: maximum number of positions of a batch, summed over its examples; None: no limit.
        max_sentences: maximum number of examples of a batch; None: no limit.
        multiple: the number of examples of a batch is a multiple of this.

    Returns:
        The index of the first example of each batch (batches,).
    """
    count = len(sizes)
    ends = np.full(count, count)
    if max_tokens is not None:
        totals = np.cumsum(sizes)
        ends = np.searchsorted(totals, totals - sizes + max_tokens, side="right")
    if max_sentences is not None:
        ends = np.minimum(ends, np.arange(count) + max_sentences)
    # For each example, the end of a batch that begins with it; the last batch has all remaining examples.
    room = ends - np.arange(count)
    room = np.where((room >= multiple) & (ends < count), room // multiple * multiple, room)
    ends = (np.arange(count) + room).tolist()
    starts, start = [], 0
    while start < count:
        starts.append(start)
        start = ends[start]
    return np.array(starts, dtype=np.int64)


def share_of_padding(sizes: Sequence[np.ndarray], starts: np.ndarray) -> float:
    """Return the share of padding that these batches would have if each part were padded to the longest of its batch.

    Args:
        sizes: for each part of an example, such as source and target, its lengths (N,).
        starts: index of the first example of each batch (batches,).
    """
    counts = np.diff(starts, append=len(sizes[0]))
    longest = sum(np.maximum.reduceat(part, starts) for part in sizes)
    return 1 - sum(part.sum() for part in sizes) / (counts * longest).sum()
