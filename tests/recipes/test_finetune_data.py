"""Pairs of a Python program as files."""

import json

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
