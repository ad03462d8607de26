"""Text for ``fairseq-interactive`` that is not UTF-8."""

import io
import sys

import pytest
from fairseq_cli import interactive

from s2sft_fairseq.errors import UserError


def read(source):
    return list(interactive.buffered_read(str(source), 2))


def test_good_text(tmp_path):
    (tmp_path / "lines.txt").write_text("a\n\nü\n", encoding="utf-8")
    assert read(tmp_path / "lines.txt") == [["a", ""], ["ü"]]


def test_names_file_and_line(tmp_path):
    (tmp_path / "lines.txt").write_bytes(b"a\nb\n\xfc\n")
    with pytest.raises(UserError, match=r"lines\.txt: 1 line\(s\) are not valid UTF-8: line 3$"):
        read(tmp_path / "lines.txt")


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n\xfc\n"), encoding="utf-8"))
    with pytest.raises(UserError, match=r"^--input -: must be UTF-8: .*can't decode byte 0xfc"):
        read("-")
