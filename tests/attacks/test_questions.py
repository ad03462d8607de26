"""Corpora of questions with values of another type."""

import json

import pytest
from raw_corpora import squad

from s2sft_fairseq.corpora.reading import Malformed
from s2sft_fairseq.corpora.squad import read_squad
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.question_answering.questions import read_questions


@pytest.mark.parametrize("title", [[], {}, 1, None])
def test_titles_of_squad(tmp_path, title):
    squad(tmp_path)
    path = tmp_path / "train-v1.1.json"
    document = json.loads(path.read_text())
    document["data"][0]["title"] = title
    path.write_text(json.dumps(document))
    malformed = Malformed()
    for examples in read_squad(tmp_path, malformed).values():
        list(examples)
    assert malformed.lines() == [f"{path}, article 1: 'title' must be a text, but is {title!r}"]


QUESTION = {"id": "q", "query": 3, "windows": [[0, 4]], "answer": [1, 2], "passage": "a b", "offsets": [[0, 1]]}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("id", value) for value in (1, None, [])),
        *(("query", value) for value in ("3", -1, 1e400, True)),
        *(("windows", value) for value in (None, {}, [[0]], [[0, 1, 2]], [["0", 1]], [[0, 1e400]], [[-1, 4]], "ab")),
        *(("answer", value) for value in (5, [1], [1, 2.5], "12", {})),
        *(("passage", value) for value in (1, [])),
        *(("offsets", value) for value in (1, [1], [[0, None]])),
        ("further", 1),
    ],
)
def test_a_question(tmp_path, key, value):
    path = tmp_path / "train.questions.jsonl"
    path.write_text(f"{json.dumps(QUESTION)}\n{json.dumps({**QUESTION, key: value})}\n")
    with pytest.raises(
        UserError, match=r"questions\.jsonl: 1 line\(s\) were not written by s2sft prepare squad: line 2$"
    ):
        read_questions(path, 2)


@pytest.mark.parametrize("text", ["[1]", "1.5", "null", '"a"', "{}", "[" * 5000])
def test_a_line_that_is_no_question(tmp_path, text):
    path = tmp_path / "train.questions.jsonl"
    path.write_text(f"{text}\n")
    with pytest.raises(UserError, match=r"questions\.jsonl: 1 line\(s\) were not written"):
        read_questions(path, 1)
