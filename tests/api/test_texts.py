"""Values that are one text, and values that are several."""

import sqlite3
from typing import NamedTuple

import pytest

from s2sft_fairseq.api.texts import fields_of, is_one, listed
from s2sft_fairseq.errors import UserError


@pytest.mark.parametrize(
    ("texts", "one", "fields"),
    [
        ("a", True, [["a"]]),
        (("a", "b"), True, [["a", "b"]]),
        (["a", "b"], False, [["a"], ["b"]]),
        ([["a", "b"], ("c",), "e"], False, [["a", "b"], ["c"], ["e"]]),
        ((text for text in "ab"), False, [["a"], ["b"]]),
        ([], False, []),
        ("", True, [[""]]),
    ],
)
def test_texts(texts, one, fields):
    assert is_one(texts) == one
    assert fields_of(listed(texts), "sources") == fields


@pytest.mark.parametrize("nothing", [None, 7, {}, (), {"a": 7}])
def test_no_text(nothing):
    with pytest.raises(UserError, match="source must be a text, or a dict"):
        fields_of(listed(nothing), "source", ("a",))


def test_dicts_are_taken_by_their_names():
    names = ("passage", "answer")
    for fields in ({"passage": "a", "answer": "b"}, {"answer": "b", "passage": "a"}):
        assert is_one(fields) and fields_of([fields, ("c", "d")], "sources", names) == [["a", "b"], ["c", "d"]]
    assert fields_of(["a [SEP] b"], "sources", names) == [["a [SEP] b"]]
    assert fields_of([{"article": "a"}, "b", ["c", "d"]], "sources", ("article",)) == [["a"], ["b"], ["c", "d"]]


class Row(NamedTuple):
    answer: str
    passage: str


def test_rows_are_taken_by_their_names():
    """A named tuple, a row of a data base and a row of a DataFrame have names as a dict has."""
    base = sqlite3.connect(":memory:")
    base.row_factory = sqlite3.Row
    (row,) = base.execute("select 'b' as answer, 'a' as passage")
    frame = pytest.importorskip("pandas").DataFrame({"answer": ["b"], "passage": ["a"]})
    for fields in (Row("b", "a"), row, frame.iloc[0], next(frame.itertuples(index=False))):
        assert fields_of([fields], "sources", ("passage", "answer")) == [["a", "b"]]
        with pytest.raises(UserError, match="has answer"):
            fields_of([fields], "sources", ("passage", "question"))


@pytest.mark.parametrize(
    ("text", "names", "argument", "words"),
    [
        ({"passage": "a"}, ("passage", "answer"), "sources", "lacks answer"),
        ({"passage": "a", "answer": "b", "x": "c"}, ("passage", "answer"), "sources", "has x"),
        ({"src": "a"}, ("article",), "sources", "lacks article and has src"),
        ({"src": "a"}, (), "sources", r"is an object \(src\), but the model has no names .*s2sft export --source"),
        ("a", ("passage", "answer"), "sources", "must have the 2 fields passage, answer, but has 1"),
        ("a [SEP] b", ("premise", "hypothesis"), "texts", "must have the 2 fields .* but has 1"),
        (["a", "b", "c"], ("passage", "answer"), "sources", "but has 3"),
    ],
)
def test_other_fields_than_those_of_the_model(text, names, argument, words):
    with pytest.raises(UserError, match=words):
        fields_of([text], argument, names)


def test_all_problems_are_named():
    with pytest.raises(UserError) as raised:
        fields_of(["a", 7, "\ud83d", ["b", None], "c"], "sources")
    problems = raised.value.problems
    assert [problem.partition(" ")[0] for problem in problems] == ["sources[1]", "sources[2]", "sources[3]"]
    assert "7" in problems[0] and "surrogate" in problems[1] and "None" in problems[2]
    with pytest.raises(UserError, match="3 more"):
        fields_of([None] * 13, "sources")


class Frame:
    """Has what is looked at of a DataFrame of pandas or polars: its columns by name, and its shape."""

    def __init__(self, **columns):
        self.named = columns
        self.columns = list(columns)
        self.shape = (len(next(iter(columns.values()))), len(columns))

    def __getitem__(self, name):
        return self.named[name]

    def __iter__(self):
        return iter(self.columns)  # as pandas does: the texts of a list would be the names


@pytest.mark.parametrize("columns", [{"article": ["a", "b"]}, {"tgt": ["x", "y"], "src": ["a", "b"], "id": [1, 2]}])
def test_a_frame_with_a_column_of_sources(columns):
    assert not is_one(Frame(**columns))
    assert listed(Frame(**columns)) == ["a", "b"]


def test_a_frame_with_a_column_of_targets():
    assert listed(Frame(tgt=["x"], src=["a"]), "targets") == ["x"]


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (Frame(article=["a"], headline=["b"]), "texts must be texts, but is a DataFrame of the columns article, h"),
        ({"a", "b"}, "texts must be a text or a list of texts, but is a set, which has no order"),
        (frozenset("a"), "is a frozenset, which has no order"),
        (b"ab", "is a bytes, which have an encoding"),
    ],
)  # fmt: skip
def test_values_without_texts_in_order(texts, problem):
    with pytest.raises(UserError, match=problem):
        listed(texts, "texts")


def test_frames_of_pandas_and_arrow():
    pandas, numpy, arrow = map(pytest.importorskip, ("pandas", "numpy", "pyarrow"))
    frame = pandas.DataFrame({"src": ["a", "b"], "tgt": ["x", None]})
    assert listed(frame) == listed(arrow.table({"src": ["a", "b"], "tgt": ["x", "y"]})) == ["a", "b"]
    assert listed(frame["src"]) == listed(frame[["src"]]) == ["a", "b"]
    with pytest.raises(UserError, match=r"sources\[0\] must be a text"):
        fields_of(listed(numpy.array([1.0, 2.0])), "sources")
    with pytest.raises(UserError, match=r"targets\[1\] must be a text.* but is (None|nan)"):
        fields_of(listed(frame, "targets"), "targets")


def test_a_frame_with_the_names_of_the_model():
    """Columns by name, in any order, among others."""
    frame = Frame(id=[1, 2], answer=["a", "b"], passage=["p", "q"])
    rows = listed(frame, "sources", ("passage", "answer"))
    assert fields_of(rows, "sources", ("passage", "answer")) == [["p", "a"], ["q", "b"]]
    assert listed(frame, "sources", ("passage",)) == ["p", "q"]
    assert listed(Frame(src=["s"], other=["o"]), "sources", ("passage",)) == ["s"]
    with pytest.raises(UserError, match="is a DataFrame of the columns id, answer, passage"):
        listed(frame, "sources", ("passage", "question"))
