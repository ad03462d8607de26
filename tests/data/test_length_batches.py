"""Batches by length: no example is left out, no budget is exceeded, and none is wasted."""

from itertools import pairwise

import numpy as np
import pytest

from s2sft_fairseq.data.length_batches import BUCKET_RATIO, bucketed_order, cut_into_batches, share_of_padding


def lengths(seed, count=300, longest=400):
    return np.random.default_rng(seed).integers(1, longest, count)


def test_buckets_hold_similar_lengths_in_ascending_order():
    sizes = lengths(0, count=5000)
    order = bucketed_order(sizes, np.random.default_rng(1))
    assert sorted(order.tolist()) == list(range(5000))
    ordered = sizes[order]
    longest_before = np.maximum.accumulate(ordered)
    assert (ordered * BUCKET_RATIO > longest_before).all()
    assert (ordered != np.sort(ordered)).any()


def test_the_order_within_a_bucket_is_the_generators():
    sizes = np.full(50, 7)
    orders = [bucketed_order(sizes, np.random.default_rng(seed)).tolist() for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[2]) == list(range(50))
    assert bucketed_order(sizes[:0], np.random.default_rng(1)).tolist() == []


def naive_batches(sizes, max_tokens, max_sentences, multiple):
    """One example after the other: [(first, last + 1)]."""
    batches, start = [], 0
    while start < len(sizes):
        end = start
        while (
            end < len(sizes)
            and (max_tokens is None or sum(sizes[start : end + 1]) <= max_tokens)
            and (max_sentences is None or end - start < max_sentences)
        ):
            end += 1
        if end < len(sizes) and end - start >= multiple:
            end = start + (end - start) // multiple * multiple
        batches.append((start, end))
        start = end
    return batches


@pytest.mark.parametrize("max_tokens", [None, 400, 1500, 10**6])
@pytest.mark.parametrize("max_sentences", [None, 1, 7, 30, 1000])
@pytest.mark.parametrize("multiple", [1, 8])
def test_batches_are_the_naive_ones(max_tokens, max_sentences, multiple):
    for seed, count in enumerate((1, 20, 300)):
        sizes = lengths(seed, count)
        # Binarized data sets have int32.
        starts = cut_into_batches(sizes.astype(np.int32), max_tokens, max_sentences, multiple)
        expected = naive_batches(sizes.tolist(), max_tokens, max_sentences, multiple)
        assert starts.tolist() == [first for first, _ in expected]


def test_a_budget_is_used_up():
    """Each batch but the last has a multiple of 4 examples, and 4 more would not fit."""
    sizes = lengths(3)
    starts = [*cut_into_batches(sizes, 3000, None, 4).tolist(), len(sizes)]
    for start, end in pairwise(starts[:-1]):
        assert (end - start) % 4 == 0
        assert sizes[start:end].sum() <= 3000 < sizes[start : end + 4].sum()


def test_share_of_padding():
    # The first batch has 3 * (5 + 4) = 27 positions, the second 1 * (7 + 1) = 8; 27 of these 35 are real.
    sources, targets = np.array([5, 2, 3, 7]), np.array([1, 4, 4, 1])
    assert share_of_padding([sources, targets], np.array([0, 3])) == pytest.approx(8 / 35)
    assert share_of_padding([sources, targets], np.arange(4)) == 0
