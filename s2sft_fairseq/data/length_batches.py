"""Batches of examples of similar length, filled up to a budget of positions that is really used: nothing is padded."""

import math
from collections.abc import Sequence

import numpy as np

BUCKET_RATIO = 1.1
"""The longest example of a bucket is less than this many times as long as the shortest."""


def bucketed_order(sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Order examples by buckets of similar length, the shortest first, at random within a bucket.

    Batches that are cut from this order hold other examples in each epoch, and yet of similar length.

    Args:
        sizes: length of each example (N,), at least 1.
        rng: for the order within buckets.

    Returns:
        The numbers of all examples (N,).
    """
    # One look-up a length is much cheaper than one logarithm an example.
    lengths = np.arange(1, sizes.max(initial=0) + 1)
    bucket = np.floor(np.log(lengths) / math.log(BUCKET_RATIO)).astype(np.int16)
    order = rng.permutation(len(sizes))
    return order[np.argsort(bucket[sizes[order] - 1], kind="stable")]


def cut_into_batches(sizes: np.ndarray, max_tokens: int | None, max_sentences: int | None, multiple: int) -> np.ndarray:
    """Cut a row of examples into batches, each as large as it may be.

    A batch has a multiple of ``multiple`` examples unless fewer than that fit; none is left out, so that the last one
    may have any number.

    Args:
        sizes: length of each example (N,), none above ``max_tokens``.
        max_tokens: most positions of a batch, summed over its examples; None: no limit.
        max_sentences: most examples of a batch; None: no limit.
        multiple: of how many examples batches are made.

    Returns:
        Where each batch begins (batches,).
    """
    count = len(sizes)
    ends = np.full(count, count)
    if max_tokens is not None:
        totals = np.cumsum(sizes)
        ends = np.searchsorted(totals, totals - sizes + max_tokens, side="right")
    if max_sentences is not None:
        ends = np.minimum(ends, np.arange(count) + max_sentences)
    # The end of a batch for each example that it may begin with; the last batch is whatever is left.
    room = ends - np.arange(count)
    room = np.where((room >= multiple) & (ends < count), room // multiple * multiple, room)
    ends = (np.arange(count) + room).tolist()
    starts, start = [], 0
    while start < count:
        starts.append(start)
        start = ends[start]
    return np.array(starts, dtype=np.int64)


def share_of_padding(sizes: Sequence[np.ndarray], starts: np.ndarray) -> float:
    """Return which share of these batches would be padding if each part of an example were padded to the longest.

    Args:
        sizes: of each part, such as source and target: its length in each example (N,).
        starts: where each batch begins (batches,).
    """
    counts = np.diff(starts, append=len(sizes[0]))
    longest = sum(np.maximum.reduceat(part, starts) for part in sizes)
    return 1 - sum(part.sum() for part in sizes) / (counts * longest).sum()
