"""Mistakes of raw files: all counted, the first ones kept."""

from pathlib import Path

import pytest

from s2sft_fairseq.corpora.malformed import SHOWN, Malformed, MalformedRecordError, take
from s2sft_fairseq.errors import UserError

A, B = Path("a.txt"), Path("b.json")


def test_nothing_is_wrong():
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


def test_of_many_the_first_are_shown():
    malformed = Malformed()
    for number in range(1, SHOWN + 1001):
        malformed.add(A, number, "is bad")
    assert malformed.lines()[0] == "a.txt:1: is bad"
    assert malformed.lines()[-1] == "and 1,000 more"
    assert len(malformed.lines()) == SHOWN + 1
    assert malformed.by_file() == f"{SHOWN + 1000:,} in a.txt"


def test_of_many_files_their_number():
    malformed = Malformed()
    for number in range(SHOWN + 1):
        malformed.add(Path(f"{number}.story"), 1, "is bad")
    assert malformed.by_file() == f"in {SHOWN + 1} files"


def test_other_exceptions_go_on():
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
