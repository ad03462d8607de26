"""Sliding windows against tables written by hand."""

import pytest

from s2sft_fairseq.question_answering.windows import slide, windows_of_most_context


@pytest.mark.parametrize(
    ("length", "room", "stride", "windows"),
    [
        (10, 4, 3, [(0, 4), (3, 4), (6, 4)]),
        (11, 4, 3, [(0, 4), (3, 4), (6, 4), (9, 2)]),
        (10, 4, 2, [(0, 4), (2, 4), (4, 4), (6, 4)]),
        (4, 4, 1, [(0, 4)]),
        (0, 4, 1, [(0, 0)]),
        # A stride beyond a window leaves nothing out.
        (9, 4, 100, [(0, 4), (4, 4), (8, 1)]),
    ],
)
def test_windows(length, room, stride, windows):
    assert slide(length, room, stride) == windows


def test_most_context():
    """Windows 0-3, 3-6, 6-9 over ten tokens. Token 3 ends one window and begins another: no context, the first counts.

    | token        | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 |
    |--------------|---|---|---|---|---|---|---|---|---|---|
    | in window 0  | 0 | 1 | 1 | 0 |   |   |   |   |   |   |
    | in window 1  |   |   |   | 0 | 1 | 1 | 0 |   |   |   |
    | in window 2  |   |   |   |   |   |   | 0 | 1 | 1 | 0 |
    """
    assert windows_of_most_context(10, slide(10, 4, 3)).tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_overlapping_windows():
    """Windows 0-4, 2-6, 4-7 over eight tokens; the last is shorter, which counts less where context is the same.

    | token        | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
    |--------------|---|---|---|---|---|---|---|---|
    | in window 0  | 0 | 1 | 2 | 1 | 0 |   |   |   |
    | in window 1  |   |   | 0 | 1 | 2 | 1 | 0 |   |
    | in window 2  |   |   |   |   | 0 | 1 | 1 | 0 |
    """
    assert windows_of_most_context(8, slide(8, 5, 2)).tolist() == [0, 0, 0, 0, 1, 1, 2, 2]


def test_of_an_empty_passage():
    assert windows_of_most_context(0, [(0, 0)]).tolist() == []
