"""Records as lines of text, errors of raw files, and finding and reading these files."""

import gzip
import re
from pathlib import Path

import pytest

from s2sft_fairseq.corpora import reading
from s2sft_fairseq.corpora.reading import (
    SHOWN,
    Example,
    Malformed,
    MalformedRecordError,
    aligned_lines,
    find,
    numbered_lines,
    require,
    take,
)
from s2sft_fairseq.data.bounded_files import read_bytes
from s2sft_fairseq.errors import UserError


def example(source: tuple[str, ...], *references: str) -> Example:
    return Example(Path("raw"), 1, source, references)


def test_lines():
    one = example((" a\u2028passage\r\n of\tlines", "", "answer"), "what\n is it ?", "b")
    assert one.source_line() == "a passage of lines [SEP]  [SEP] answer"
    assert one.reference_lines() == ["what is it ?", "b"]


@pytest.mark.parametrize(
    ("one", "problem"),
    [
        (example(("", " \n"), "b"), "the source is empty"),
        (example(("a [SEP] b",), "b"), r"the source holds \[SEP\], which separates fields"),
        (example(("a",)), "has no target"),
        (example(("a",), "b", " "), "the target is empty"),
    ],
)
def test_malformed_examples(one, problem):
    with pytest.raises(MalformedRecordError, match=problem):
        print(one.source_line(), one.reference_lines())


def test_the_file_to_blame():
    paths = tuple(map(Path, ("passage", "answer", "question")))
    malformed = Malformed()
    for number, (source, target) in enumerate(((("a", "b"), ""), (("a", "b [SEP]"), "c"), (("", ""), "c")), 1):
        one = Example(paths[0], number, source, (target,), paths)
        with malformed.record(one.path, one.where):
            print(one.source_line(), one.reference_lines())
    assert malformed.shown == [
        "question:1: the target is empty",
        "answer:2: the source holds [SEP], which separates fields",
        "passage:3: the source is empty",
    ]
    assert set(malformed.records) == set(paths)


A, B = Path("a.txt"), Path("b.json")


def test_no_errors():
    Malformed().raise_any()
    assert Malformed().lines() == []


def test_all_are_reported_together():
    malformed = Malformed()
    malformed.add(A, 3, "is bad")
    with malformed.record(B, "question 7"):
        raise MalformedRecordError("has no answer")
    with pytest.raises(UserError) as raised:
        malformed.raise_any()
    assert str(raised.value) == (
        "2 malformed records (1 in a.txt, 1 in b.json); --skip-malformed leaves them out:\n"
        "  - a.txt:3: is bad\n"
        "  - b.json, question 7: has no answer"
    )


def test_a_record_counts_once():
    malformed = Malformed()
    malformed.add(A, 3, "is not valid UTF-8")
    malformed.add(A, 3, "is bad")
    malformed.add(B, 3, "is bad")
    assert malformed.lines() == ["a.txt:3: is not valid UTF-8", "b.json:3: is bad"]
    assert malformed.by_file() == "1 in a.txt, 1 in b.json"


def test_the_memory_of_known_records_is_bounded(monkeypatch):
    monkeypatch.setattr(reading, "MOST_KNOWN", 2)
    malformed = Malformed()
    for number in (1, 2, 3, 1, 2, 3):
        malformed.add(A, number, "is bad")
    assert malformed.records[A] == 4  # the third record is counted twice
    assert len(malformed.known) == 2


def test_only_the_first_of_many_are_shown():
    malformed = Malformed()
    for number in range(1, SHOWN + 1001):
        malformed.add(A, number, "is bad")
    assert malformed.lines()[0] == "a.txt:1: is bad"
    assert malformed.lines()[-1] == "and 1,000 more"
    assert len(malformed.lines()) == SHOWN + 1
    assert malformed.by_file() == f"{SHOWN + 1000:,} in a.txt"


def test_many_files_are_counted():
    malformed = Malformed()
    for number in range(SHOWN + 1):
        malformed.add(Path(f"{number}.story"), 1, "is bad")
    assert malformed.by_file() == f"in {SHOWN + 1} files"


def test_other_exceptions_pass_through():
    with pytest.raises(ValueError, match="other"), Malformed().record(A, 1):
        raise ValueError("other")


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        ([], r"must be an object, but is \[\]"),
        ({"other": 1}, "lacks 'key'"),
        ({"key": 1}, "'key' must be a text, but is 1"),
    ],
)
def test_take(record, problem):
    assert take({"key": "text"}, "key", str) == "text"
    with pytest.raises(MalformedRecordError, match=problem):
        take(record, "key", str)


def test_find_and_require(tmp_path):
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"text\n"))
    assert find(tmp_path, "a.txt") == tmp_path / "a.txt"
    assert require(tmp_path, "b.txt", "a.txt") == [tmp_path / "b.txt.gz", tmp_path / "a.txt"]
    assert read_bytes(tmp_path / "b.txt.gz") == b"text\n"
    problem = f"--raw {tmp_path} must hold a.txt, c.txt, d.txt (or .gz), but lacks c.txt, d.txt"
    with pytest.raises(UserError, match=re.escape(problem)):
        require(tmp_path, "a.txt", "c.txt", "d.txt")


def test_lines_and_their_numbers(tmp_path, malformed):
    (tmp_path / "a").write_bytes(b"one\r\n\n\xff\nlast \xe2\x80\xa8 line")
    assert list(numbered_lines(tmp_path / "a", malformed)) == [
        (1, "one"),
        (2, ""),
        (3, None),
        (4, "last \u2028 line"),
    ]
    assert malformed.lines() == [f"{tmp_path / 'a'}:3: is not valid UTF-8"]


def test_aligned_lines(tmp_path, malformed):
    (tmp_path / "a").write_bytes(b"1\n2\n3\n")
    (tmp_path / "b").write_bytes(b"x\n\xff\nz\n")
    assert list(aligned_lines([tmp_path / "a", tmp_path / "b"], malformed)) == [(1, ["1", "x"]), (3, ["3", "z"])]


def test_files_of_different_lengths(tmp_path, malformed):
    (tmp_path / "a").write_text("1\n2\n3\n")
    (tmp_path / "b").write_text("x\n")
    with pytest.raises(UserError) as raised:
        list(aligned_lines([tmp_path / "a", tmp_path / "b"], malformed))
    assert str(raised.value) == (
        f"line-aligned files must have equally many lines, but {tmp_path / 'a'} has 3, {tmp_path / 'b'} has 1"
    )


@pytest.mark.parametrize("damage", [slice(0, 20), slice(4, None)])
def test_damaged_files(tmp_path, malformed, damage):
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"line\n" * 100)[damage])
    for read in (read_bytes, lambda path: list(numbered_lines(path, malformed))):
        with pytest.raises(UserError, match=r"a\.gz: cannot be read: "):
            read(tmp_path / "a.gz")
