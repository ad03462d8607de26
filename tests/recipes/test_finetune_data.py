"""Pairs of a Python program as files."""

import json
from typing import NamedTuple

import pytest

from s2sft_fairseq.corpora.pairs import USUAL, Fields
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.recipes.finetune_data import to_files

PAIRS = [("a", "b"), ("c", "d")]


class Dataset:
    """As in the package datasets: not a list, but its rows are dicts, with further columns."""

    def __iter__(self):
        return iter([{"src": source, "tgt": target, "label": object()} for source, target in PAIRS])


@pytest.mark.parametrize(
    "examples", [PAIRS, tuple(PAIRS), iter(PAIRS), [list(pair) for pair in PAIRS], Dataset(), list(Dataset())]
)
def test_examples(tmp_path, examples):
    (path,) = to_files({"train": examples, "valid": None}, tmp_path, USUAL)["train"]
    assert path == tmp_path / "train.jsonl"
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert found == [{"src": source, "tgt": target} for source, target in PAIRS]


class Row(NamedTuple):
    tgt: str
    src: str


def test_rows_are_taken_by_their_names(tmp_path):
    """A named tuple and a row of a DataFrame have names as a dict has, whatever their order is."""
    frame = pytest.importorskip("pandas").DataFrame({"tgt": ["b"], "src": ["a"]})
    rows = [Row("b", "a"), frame.iloc[0], next(frame.itertuples(index=False))]
    (path,) = to_files({"train": rows}, tmp_path, USUAL)["train"]
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"src": "a", "tgt": "b"}] * 3
    with pytest.raises(UserError, match=r"train\[0\] .*article"):
        to_files({"train": rows}, tmp_path, Fields(("article",), "tgt"))


def test_files(tmp_path):
    files = to_files({"train": "a.jsonl", "valid": ["a.de", "a.en"], "test": tmp_path / "a.tsv"}, tmp_path, USUAL)
    assert [list(map(str, paths)) for paths in files.values()] == [["a.jsonl"], ["a.de", "a.en"], [f"{tmp_path}/a.tsv"]]
    assert list(tmp_path.iterdir()) == []


def test_fields(tmp_path):
    record = {"question": "q", "passage": "p", "answer": "a", "id": 7}
    (path,) = to_files({"train": [record]}, tmp_path, Fields(("question", "passage"), "answer"))["train"]
    assert json.loads(path.read_text()) == {"question": "q", "passage": "p", "answer": "a"}


def test_values_that_are_not_pairs(tmp_path):
    wrong = [("a", "b"), "text", ("a",), *range(10)]
    with pytest.raises(UserError) as error:
        to_files({"train": wrong, "valid": 7}, tmp_path, USUAL)
    heading, *problems = str(error.value).split("\n")
    assert heading == "12 problems:"
    assert problems[:2] == [
        "  - train[1] must be a pair (source, target) or a dict, but is 'text'",
        "  - train[2] must be a pair (source, target) or a dict, but is ('a',)",
    ]
    assert problems[-2:] == ["  - and 2 more of train", "  - valid must be pairs or the path of a file, but is a int"]


class Frame:
    """Has what is looked at of a DataFrame, which yields the names of its columns."""

    def __init__(self, **columns):
        self.named, self.columns, self.shape = columns, list(columns), (2, len(columns))

    def __getitem__(self, name):
        return self.named[name]

    def __iter__(self):
        return iter(self.columns)


def test_frames(tmp_path):
    frame = Frame(id=[1, 2], article=["a", "c"], headline=["b", "d"])
    (path,) = to_files({"train": frame}, tmp_path, Fields(("article",), "headline"))["train"]
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert records == [{"article": source, "headline": target} for source, target in PAIRS]
    pandas = pytest.importorskip("pandas")
    (path,) = to_files({"train": pandas.DataFrame(PAIRS, columns=["src", "tgt"])}, tmp_path, USUAL)["train"]
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"src": a, "tgt": b} for a, b in PAIRS]
    (path,) = to_files({"train": pandas.DataFrame(PAIRS).to_numpy()}, tmp_path, USUAL)["train"]
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"src": a, "tgt": b} for a, b in PAIRS]


@pytest.mark.parametrize(
    ("examples", "problem"),
    [
        (Frame(article=["a"], headline=["b"]), "train must have the columns src, tgt, but has article, headl"),
        ([], "train must have pairs, but is empty"),
        (iter(()), "train must have pairs, but is empty"),
        ({"src": ["a"], "tgt": ["b"]}, "train must be pairs or the path of a file, but is a dict with src, tgt"),
        ({("a", "b")}, "train must be pairs or the path of a file, but is a set, which has no order"),
        (b"ab", "train must be pairs or the path of a file, but is a bytes"),
        ([("a", "b"), ("c", float("nan"))], "train[1] 'tgt' must be a text, but is nan"),
        ([("a", "b"), ("c\ud800", "d")], "train[1] has half a surrogate pair"),
        ([("a", None)], "train[0] 'tgt' must be a text, but is None"),
        ([{"article": "a", "highlights": "b"}], "train[0] lacks 'src': it has article, highlights ("),
        ([("a", "b", "c")], "train[0] must be a pair (source, target) or a dict, but is ('a', 'b', 'c')"),
        (["ab", "c", "d"], "train[0] must be a pair (source, target) or a dict, but is 'ab'"),
        ([{"src": "a", "refs": ["b", 7]}], "train[0] 'refs' must be a text or a list of texts, but is ['b', 7]"),
    ],
)  # fmt: skip
def test_examples_with_errors(tmp_path, examples, problem):
    """Each is named, before anything is written."""
    with pytest.raises(UserError) as error:
        to_files({"train": examples}, tmp_path / "pairs", USUAL)
    assert problem in str(error.value)
    assert not list((tmp_path / "pairs").glob("*.jsonl"))


def test_a_file_stays_as_it_was(tmp_path):
    (path,) = to_files({"train": PAIRS}, tmp_path, USUAL)["train"]
    before = path.read_bytes()
    with pytest.raises(UserError, match=r"train\[1\] 'tgt' must be a text"):
        to_files({"train": [("a", "b"), ("c", 7)]}, tmp_path, USUAL)
    assert path.read_bytes() == before


def test_malformed_examples_are_left_out_if_asked(tmp_path, caplog):
    (path,) = to_files({"train": [("a", "b"), ("c", None)]}, tmp_path, USUAL, skip_malformed=True)["train"]
    assert path.read_text() == '{"src": "a", "tgt": "b"}\n'
    assert "left out: train[1] 'tgt' must be a text, but is None" in caplog.text


def test_columns_that_occur_twice(tmp_path):
    frame = Frame(src=["a"], tgt=["b"])
    frame.columns.append("src")
    with pytest.raises(UserError, match="train has several columns src"):
        to_files({"train": frame}, tmp_path, USUAL)
