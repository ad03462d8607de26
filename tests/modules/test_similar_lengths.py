"""Groups of neighbours of similar lengths."""

import numpy as np
import pytest

from s2sft_fairseq.modules.similar_lengths import MOST_PADDING, consecutive, similar_lengths


def padding(lengths):
    return 1 - sum(lengths) / (max(lengths) * len(lengths))


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_every_sentence_once_with_little_padding(seed, ordered):
    lengths = np.random.default_rng(seed).integers(1, 300, 50).tolist()
    if ordered:
        lengths.sort(reverse=True)
    groups = list(similar_lengths(lengths))
    assert [index for rows, _ in groups for index in range(50)[rows]] == list(range(50))
    for rows, longest in groups:
        assert longest == max(lengths[rows])
        assert padding(lengths[rows]) <= MOST_PADDING
        # The next one would not have fitted.
        assert rows.stop == 50 or padding(lengths[rows.start : rows.stop + 1]) > MOST_PADDING
    assert len(groups) < (20 if ordered else 45)


def test_a_short_one_among_many_stays_with_them():
    assert list(similar_lengths([8] * 7 + [1] + [8] * 7)) == [(slice(0, 15), 8)]
    assert list(similar_lengths([8, 1, 8])) == [(slice(0, 1), 8), (slice(1, 2), 1), (slice(2, 3), 8)]


def test_one_length_and_none():
    assert list(similar_lengths([7, 7, 7])) == [(slice(0, 3), 7)]
    assert list(similar_lengths([])) == []


def test_consecutive_groups_by_positions():
    assert list(consecutive([3, 4, 2, 9, 1, 1], 8)) == [
        (slice(0, 2), slice(0, 7)),
        (slice(2, 3), slice(7, 9)),
        (slice(3, 4), slice(9, 18)),  # alone it may be longer
        (slice(4, 6), slice(18, 20)),
    ]
    assert list(consecutive([], 8)) == []
    assert list(consecutive([5], 1)) == [(slice(0, 1), slice(0, 5))]
