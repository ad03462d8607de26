"""The best spans over windows, against a search of all of them."""

import math

import numpy as np
import pytest

from s2sft_fairseq.question_answering.answers import find_answers
from s2sft_fairseq.question_answering.questions import Question
from s2sft_fairseq.question_answering.windows import slide, windows_of_most_context

WORDS = list("abcdefghijk")
PASSAGE = " ".join(WORDS)
OFFSETS = [(2 * number, 2 * number + 1) for number in range(len(WORDS))]


def question(room=5, stride=3):
    return Question("q", 2, slide(len(WORDS), room, stride), None, PASSAGE, OFFSETS)


def random_logits(asked, seed):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(asked.first + size + 1, 2)).astype(np.float32) for _, size in asked.windows]


def all_spans(asked, logits, most):
    """Every span that may be an answer, the best first."""
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


def test_question_and_separators_are_no_answers():
    asked = question(room=11)
    (logits,) = random_logits(asked, 0)
    logits[: asked.first] = logits[-1] = 100.0
    assert len(find_answers(asked, [logits], 30).best[0].text) > 0
    assert find_answers(asked, [logits], 30).best[0].score < 50


def test_an_empty_passage():
    asked = Question("q", 2, [(0, 0)], None, "", [])
    found = find_answers(asked, [np.zeros((5, 2), dtype=np.float32)], 30)
    assert (found.best, found.text(), found.null_odds) == ([], "", math.inf)
