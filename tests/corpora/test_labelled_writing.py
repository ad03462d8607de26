"""The text files of classification."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from s2sft_fairseq.corpora.example import Example
from s2sft_fairseq.corpora.labelled_writing import write_labelled
from s2sft_fairseq.errors import UserError

PATH = Path("raw.tsv")


def examples(*rows):
    return [Example(PATH, number, source, label) for number, (source, label) in enumerate(rows, 1)]


def test_files(tmp_path, malformed):
    train = examples((("a  b", "c"), ("yes",)), (("d", ""), ("no",)), (("e", "f"), ("no",)))
    test = examples((("g", "h"), ()))
    stats = write_labelled(
        {"train": train, "test": test}, tmp_path / "out", malformed, classes=("no", "yes"), limit=2, settings={"x": 1}
    )
    files = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert json.loads(files.pop("stats.json")) == stats
    assert stats == {"lines": {"train": 2, "test": 1}, "settings": {"x": 1}, "malformed": 0}
    assert files == {
        "train.txt": "a b [SEP] c\nd [SEP] \n",
        "train.label": "yes\nno\n",
        "test.txt": "g [SEP] h\n",
        "labels.txt": "no\nyes\n",
    }
    with pytest.raises(UserError, match=r"must be new or empty, but holds labels\.txt"):
        write_labelled({"train": train}, tmp_path / "out", malformed, classes=())


def test_malformed(tmp_path, malformed):
    splits = {"train": examples((("", ""), ("1",)), (("a",), ("1",)))}
    with pytest.raises(UserError, match=r"1 malformed records .*\n  - raw\.tsv:1: the source is empty$"):
        write_labelled(splits, tmp_path / "out", malformed, classes=())
    assert not list(tmp_path.iterdir())
    write_labelled(splits, tmp_path / "out", malformed, classes=(), skip_malformed=True)
    assert (tmp_path / "out" / "train.txt").read_text() == "a\n"
    assert not (tmp_path / "out" / "labels.txt").exists()


def test_no_row_of_a_test_set_is_left_out(tmp_path, malformed):
    """Its predictions are numbered by its rows."""
    many = examples(*[(("",), ("1",))] * 25, (("a",), ("1",)))
    test = [replace(example, path=Path("test.tsv")) for example in examples((("b",), ()), (("",), ()))]
    splits = {"train": many, "test": test}
    with pytest.raises(UserError, match="--skip-malformed cannot leave rows of the test set out, whose predictions"):
        write_labelled(splits, tmp_path / "out", malformed, classes=(), skip_malformed=True)
    assert not list(tmp_path.iterdir())
