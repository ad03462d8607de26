"""Sliding windows by hand, the file of questions, and the best spans compared with a search of all spans."""

import math

import numpy as np
import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.question_answering.questions import (
    Question,
    find_answers,
    label_array,
    questions_path,
    read_questions,
    slide,
    windows_of_most_context,
)


@pytest.mark.parametrize(
    ("length", "room", "stride", "windows"),
    [
        (10, 4, 3, [(0, 4), (3, 4), (6, 4)]),
        (11, 4, 3, [(0, 4), (3, 4), (6, 4), (9, 2)]),
        (10, 4, 2, [(0, 4), (2, 4), (4, 4), (6, 4)]),
        (4, 4, 1, [(0, 4)]),
        (0, 4, 1, [(0, 0)]),
        # A stride longer than a window skips nothing.
        (9, 4, 100, [(0, 4), (4, 4), (8, 1)]),
    ],
)
def test_windows(length, room, stride, windows):
    assert slide(length, room, stride) == windows


def test_most_context():
    """Windows 0-3, 3-6, 6-9 over ten tokens. Token 3 is at the edge of two windows: no context, so the first counts.

    | token        | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 |
    |--------------|---|---|---|---|---|---|---|---|---|---|
    | in window 0  | 0 | 1 | 1 | 0 |   |   |   |   |   |   |
    | in window 1  |   |   |   | 0 | 1 | 1 | 0 |   |   |   |
    | in window 2  |   |   |   |   |   |   | 0 | 1 | 1 | 0 |
    """
    assert windows_of_most_context(10, slide(10, 4, 3)).tolist() == [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_overlapping_windows():
    """Windows 0-4, 2-6, 4-7 over eight tokens; the last is shorter, so it loses if the context is equal.

    | token        | 0 | 1 | 2 | 3 | 4 | 5 | 6 | 7 |
    |--------------|---|---|---|---|---|---|---|---|
    | in window 0  | 0 | 1 | 2 | 1 | 0 |   |   |   |
    | in window 1  |   |   | 0 | 1 | 2 | 1 | 0 |   |
    | in window 2  |   |   |   |   | 0 | 1 | 1 | 0 |
    """
    assert windows_of_most_context(8, slide(8, 5, 2)).tolist() == [0, 0, 0, 0, 1, 1, 2, 2]


def test_of_an_empty_passage():
    assert windows_of_most_context(0, [(0, 0)]).tolist() == []


# A question of 2 tokens, so windows begin at 4; the answer is tokens 3 and 4 of the passage.
LONG = Question("a", 2, [(0, 4), (3, 4), (4, 3)], (3, 4), "one two", [(0, 3), (4, 7)])
NONE = Question("b", 1, [(0, 5)])


def test_labels():
    assert LONG.labels() == [(0, 0), (4, 5), (0, 0)]
    assert label_array([LONG, NONE]).tolist() == [[0, 0], [4, 5], [0, 0], [0, 0]]


def test_file(tmp_path):
    path = questions_path(tmp_path, "valid")
    assert path.name == "valid.questions.jsonl"
    path.write_text(f"{LONG.to_json()}\n{NONE.to_json()}\n")
    one, other = read_questions(path, 4)
    assert (one.id, one.windows, one.answer, one.passage) == (LONG.id, LONG.windows, LONG.answer, LONG.passage)
    assert [tuple(place) for place in one.offsets] == LONG.offsets
    assert other == NONE
    with pytest.raises(UserError, match=r"has 4 windows, but the binarized split has 5 texts$"):
        read_questions(path, 5)
    path.write_text(f'{LONG.to_json()}\n{{"id": "c"}}\nnothing\n')
    with pytest.raises(UserError, match=r"2 line\(s\) were not written by s2sft prepare squad: line 2, 3$"):
        read_questions(path, 3)


WORDS = list("abcdefghijk")
PASSAGE = " ".join(WORDS)
OFFSETS = [(2 * number, 2 * number + 1) for number in range(len(WORDS))]


def question(room=5, stride=3):
    return Question("q", 2, slide(len(WORDS), room, stride), None, PASSAGE, OFFSETS)


def random_logits(asked, seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(asked.first + size + 1, 2)).astype(np.float32) for _, size in asked.windows]


def all_spans(asked, logits, most):
    """Return all spans that can be answers, the best first."""
    owner = windows_of_most_context(len(OFFSETS), asked.windows)
    spans = []
    for number, (start, size) in enumerate(asked.windows):
        for first in range(start, start + size):
            for last in range(first, min(first + most, start + size)):
                if owner[first] == number:
                    places = (first - start + asked.first, last - start + asked.first)
                    score = logits[number][places[0], 0] + logits[number][places[1], 1]
                    spans.append((float(score), PASSAGE[OFFSETS[first][0] : OFFSETS[last][1]]))
    return sorted(spans, reverse=True)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("most", [1, 3, 30])
def test_best_spans(seed, most):
    asked = question()
    logits = random_logits(asked, seed)
    expected = all_spans(asked, logits, most)[:4]
    found = find_answers(asked, logits, most, count=4)
    assert [answer.text for answer in found.best] == [text for _, text in expected]
    assert [answer.score for answer in found.best] == pytest.approx([score for score, _ in expected], rel=1e-5)
    assert found.null == pytest.approx(min(float(of_window[0].sum()) for of_window in logits))
    assert found.null_odds == pytest.approx(found.null - expected[0][0], rel=1e-5)
    assert find_answers(asked, logits, most).best == found.best[:1]


def test_threshold():
    asked = question(room=11)
    (logits,) = random_logits(asked, 0)
    logits[:] = 0
    logits[asked.first + 2, 0] = logits[asked.first + 3, 1] = 2.0
    logits[0] = 1.5
    found = find_answers(asked, [logits], 30)
    assert found.null_odds == -1.0
    assert found.text() == found.text(-1.0) == "c d"
    assert found.text(-1.1) == ""


def test_question_and_separators_are_not_answers():
    asked = question(room=11)
    (logits,) = random_logits(asked, 0)
    logits[: asked.first] = logits[-1] = 100.0
    assert len(find_answers(asked, [logits], 30).best[0].text) > 0
    assert find_answers(asked, [logits], 30).best[0].score < 50


def test_an_empty_passage():
    asked = Question("q", 2, [(0, 0)], None, "", [])
    found = find_answers(asked, [np.zeros((5, 2), dtype=np.float32)], 30)
    assert (found.best, found.text(), found.null_odds) == ([], "", math.inf)
