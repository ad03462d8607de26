"""Finding raw files and reading their lines."""

import gzip
import re

import pytest

from s2sft_fairseq.corpora.raw_files import aligned_lines, find, numbered_lines, read_bytes, require
from s2sft_fairseq.errors import UserError


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
