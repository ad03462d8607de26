"""From examples to text files, also those of classification."""

import json
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from s2sft_fairseq.checksums import read_checksums
from s2sft_fairseq.corpora.reading import Example
from s2sft_fairseq.corpora.writing import write_corpus, write_labelled
from s2sft_fairseq.errors import UserError


def examples(*rows: tuple[str, ...]) -> list[Example]:
    """Return an example for each row: its source, then its references."""
    return [Example(Path("raw"), number, (row[0],), row[1:]) for number, row in enumerate(rows, 1)]


SPLITS = {
    "train": examples(("a", "1", "2"), ("b", "3")),
    "valid": examples(("c", "4", "5")),
    "test": examples(("d", "6"), ("é", "ü", "8")),
    "test_other": examples(("f", "9")),
}


def test_files(tmp_path, malformed):
    stats = write_corpus(SPLITS, tmp_path / "corpus", malformed, settings={"raw": tmp_path})
    found = {path.name: path.read_text(encoding="utf-8") for path in (tmp_path / "corpus").iterdir()}
    del found["SHA256SUMS"]
    assert read_checksums(tmp_path / "corpus").keys() == found.keys()
    assert json.loads(found.pop("stats.json")) == {**stats, "settings": {"raw": str(tmp_path)}}
    assert stats["lines"] == {"train": 3, "valid": 2, "dev": 1, "test": 2, "test_other": 1}
    assert stats["malformed"] == 0
    assert found == {
        "train.src": "a\na\nb\n",
        "train.tgt": "1\n2\n3\n",
        "valid.src": "c\nc\n",
        "valid.tgt": "4\n5\n",
        "dev.src": "c\n",
        "dev.refs.jsonl": '{"refs": ["4", "5"]}\n',
        "test.src": "d\né\n",
        "test.refs.jsonl": '{"refs": ["6"]}\n{"refs": ["ü", "8"]}\n',
        "test_other.src": "f\n",
        "test_other.refs.jsonl": '{"refs": ["9"]}\n',
    }


def test_limit_reads_no_further(tmp_path, malformed):
    def endless():
        for number in count(1):
            yield Example(Path("raw"), number, ("a" * (number % 2 == 0),), ("1",))

    stats = write_corpus({"train": endless()}, tmp_path / "corpus", malformed, limit=3, skip_malformed=True)
    assert stats["lines"] == {"train": 3}
    assert malformed.records.total() == 3  # the one before each of the 3


def test_malformed_records_are_an_error_or_left_out(tmp_path, malformed):
    rows = {"train": examples(("a", "1"), ("b", ""), ("c",), ("d", "4"))}
    problems = r"2 malformed records .*\n  - raw:2: the target is empty\n  - raw:3: has no target"
    with pytest.raises(UserError, match=problems):
        write_corpus(rows, tmp_path / "corpus", malformed)
    assert list(tmp_path.iterdir()) == []
    write_corpus(rows, tmp_path / "corpus", malformed, skip_malformed=True)
    assert (tmp_path / "corpus" / "train.src").read_text() == "a\nd\n"


def test_empty_splits(tmp_path, malformed):
    with pytest.raises(UserError, match=r"no example for valid\n  - no example for dev"):
        write_corpus({"train": SPLITS["train"], "valid": []}, tmp_path / "corpus", malformed)
    assert list(tmp_path.iterdir()) == []


def test_leftovers_of_an_interrupted_run_are_no_problem(tmp_path, malformed):
    (tmp_path / ".corpus.12-0123abcd.tmp").mkdir()
    (tmp_path / ".corpus.12-0123abcd.tmp" / "train.src").write_text("old\n")
    write_corpus(SPLITS, tmp_path / "corpus", malformed)
    assert [path.name for path in tmp_path.iterdir()] == ["corpus"]
    with pytest.raises(
        UserError, match=r"--output .*corpus must be new or empty, but holds SHA256SUMS, dev\.refs\.jsonl"
    ):
        write_corpus(SPLITS, tmp_path / "corpus", malformed)


PATH = Path("raw.tsv")


def labelled(*rows):
    return [Example(PATH, number, source, label) for number, (source, label) in enumerate(rows, 1)]


def test_files_of_classification(tmp_path, malformed):
    train = labelled((("a  b", "c"), ("yes",)), (("d", ""), ("no",)), (("e", "f"), ("no",)))
    test = labelled((("g", "h"), ()))
    stats = write_labelled(
        {"train": train, "test": test}, tmp_path / "out", malformed, classes=("no", "yes"), limit=2, settings={"x": 1}
    )
    files = {path.name: path.read_text() for path in (tmp_path / "out").iterdir() if path.name != "SHA256SUMS"}
    assert json.loads(files.pop("stats.json")) == stats
    assert stats == {"lines": {"train": 2, "test": 1}, "settings": {"x": 1}, "malformed": 0}
    assert files == {
        "train.txt": "a b [SEP] c\nd [SEP] \n",
        "train.label": "yes\nno\n",
        "test.txt": "g [SEP] h\n",
        "labels.txt": "no\nyes\n",
    }
    with pytest.raises(UserError, match=r"must be new or empty, but holds .*labels\.txt"):
        write_labelled({"train": train}, tmp_path / "out", malformed, classes=())


def test_malformed_rows_of_classification(tmp_path, malformed):
    splits = {"train": labelled((("", ""), ("1",)), (("a",), ("1",)))}
    with pytest.raises(UserError, match=r"1 malformed records .*\n  - raw\.tsv:1: the source is empty$"):
        write_labelled(splits, tmp_path / "out", malformed, classes=())
    assert not list(tmp_path.iterdir())
    write_labelled(splits, tmp_path / "out", malformed, classes=(), skip_malformed=True)
    assert (tmp_path / "out" / "train.txt").read_text() == "a\n"
    assert not (tmp_path / "out" / "labels.txt").exists()


def test_no_row_of_a_test_set_is_left_out(tmp_path, malformed):
    """Predictions for a test set are numbered by its rows."""
    many = labelled(*[(("",), ("1",))] * 25, (("a",), ("1",)))
    test = [replace(example, path=Path("test.tsv")) for example in labelled((("b",), ()), (("",), ()))]
    splits = {"train": many, "test": test}
    with pytest.raises(UserError, match="--skip-malformed cannot skip rows of the test set"):
        write_labelled(splits, tmp_path / "out", malformed, classes=(), skip_malformed=True)
    assert not list(tmp_path.iterdir())
