"""CoQA's F1 and exact match, by hand."""

import numpy as np
import pytest

from s2sft_fairseq.evaluation.coqa import answer_words, coqa, word_f1
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.settings import Settings


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The U.S. Army!", ["us", "army"]),
        ("A an THE", []),
        ("theatre, another", ["theatre", "another"]),
        ("the-end", ["theend"]),
    ],
)
def test_words_that_count(text, words):
    assert answer_words(text) == words


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        ("a b", "a b", 1),
        ("x y", "z", 0),
        ("x y y", "y y y z", 4 / 7),  # 2 of 3 and 2 of 4
        ("", "", 1),
        ("x", "", 0),
        ("", "x", 0),
    ],
)
def test_f1(answer, reference, expected):
    assert word_f1(answer.split(), reference.split()) == pytest.approx(expected)


def scores(*references, answer):
    return coqa([Example(answer, references)], Settings()).statistics.over(np.array([0]))


def test_one_reference():
    assert scores("The white cat", answer="a white dog") == {"F1": pytest.approx(50), "EM": 0}
    assert scores("The cat.", answer="cat") == {"F1": 100, "EM": 100}


def test_several_references_are_left_out_in_turn():
    # Without the first: best F1 2/3 ("big cat"); without the second or the third: 1.
    found = scores("cat", "big cat", "dog", answer="the cat")
    assert found == {"F1": pytest.approx(100 * (2 / 3 + 1 + 1) / 3), "EM": pytest.approx(200 / 3)}
