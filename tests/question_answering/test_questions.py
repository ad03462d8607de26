"""The questions of a split: labels of windows, and their file."""

import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.question_answering.questions import Question, label_array, questions_path, read_questions

# A question of 2 tokens, so that windows begin at 4; the answer is tokens 3 and 4 of the passage.
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
