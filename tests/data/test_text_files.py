"""Text files are counted as fairseq-preprocess reads them; what it would misread is refused; JSON files."""

import contextlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from fairseq.file_chunker_utils import Chunker, find_offsets

from s2sft_fairseq.data import bounded_files
from s2sft_fairseq.data.bounded_files import open_bytes, read_json, read_json_object
from s2sft_fairseq.data.text_files import (
    TextStats,
    check_parallel,
    check_text,
    check_texts,
    is_json_lines,
    plain_name,
    read_lines,
    write_lines,
)
from s2sft_fairseq.errors import UserError


def read_as_fairseq(path: Path, workers: int) -> list[str]:
    offsets = find_offsets(str(path), workers)
    lines: list[str] = []
    for start, end in pairwise(offsets):
        with Chunker(str(path), start, end) as chunk:
            lines += chunk
    return lines


def written(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


TEXTS = {
    "plain": "one\ntwo\n",
    "no line end at the end": "one\ntwo",
    "empty lines": "\n\none\n\n \n\t\n",
    "separators that Python's splitlines knows": "a\u2028b\u2029c\x0bd\x0ce\x85f\x1cg\x1dh\x1ei\n" * 5,
    "wide characters": "é中😀 " * 50 + "\n" + "😀\n" * 30,
    "longer than a buffer": "word " * 5000 + "\nend\n",
}


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_lines_are_those_of_fairseq_preprocess(tmp_path, text, workers):
    path = written(tmp_path, "x.src", text.encode())
    expected = [line.removesuffix("\n") for line in read_as_fairseq(path, workers)]
    assert list(read_lines(path)) == expected
    assert check_text(path).lines == len(expected)


def test_why_carriage_returns_are_refused(tmp_path):
    """With several workers, fairseq-preprocess silently repeats lines of a file that has them."""
    path = written(tmp_path, "x.src", b"aaaaa\r\n\r\n\r\n")
    assert len(read_as_fairseq(path, workers=1)) == 3
    assert len(read_as_fairseq(path, workers=4)) == 5


def test_empty_lines_are_kept_and_logged(tmp_path, caplog):
    path = written(tmp_path, "x.src", b"one\n\n  \ntwo\n\n")
    with caplog.at_level(logging.INFO):
        stats = check_text(path)
    assert (stats.lines, stats.empty_lines) == (5, 3)
    assert list(read_lines(path)) == ["one", "", "  ", "two", ""]
    assert f"{path}: 5 lines, 3 of them empty (kept in order)" in caplog.text


def test_windows_line_ends(tmp_path):
    path = written(tmp_path, "x.src", b"one\r\n\r\ntwo\r\n")
    assert check_text(path, allow_crlf=True).empty_lines == 1
    assert list(read_lines(path)) == ["one", "", "two"]
    with pytest.raises(UserError, match=re.escape(f"{path}: 3 line(s) end in \\r\\n where \\n alone is needed")):
        check_text(path)


@pytest.mark.parametrize("content", [b"one\ntwo\rthree\n", b"one\ntwo\r\r\n", b"one\ntwo\r"])
@pytest.mark.parametrize("allow_crlf", [False, True])
def test_a_carriage_return_that_ends_no_line(tmp_path, content, allow_crlf):
    path = written(tmp_path, "x.src", content)
    expected = r"x\.src: 1 line\(s\) .*(carriage return|\\r).*: line 2$"
    with pytest.raises(UserError, match=expected):
        check_text(path, allow_crlf=allow_crlf)


def test_invalid_utf8_names_the_first_lines_and_their_number(tmp_path):
    path = written(tmp_path, "x.src", b"good\n" + b"bad \xff\n" * 12 + b"half \xc3\n")
    expected = f"{path}: 13 line(s) are not valid UTF-8: line 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, ..."
    with pytest.raises(UserError, match=re.escape(expected)):
        check_text(path)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "is empty, at least one line is needed"),
        (b"\xef\xbb\xbfone\n", r"starts with a byte order mark \(U\+FEFF\)"),
        ("one\n".encode("utf-16-le"), r"hold NUL characters \(is the file UTF-16\?\): line 1"),
    ],
)
def test_other_files_that_are_not_text(tmp_path, content, problem):
    with pytest.raises(UserError, match=problem):
        check_text(written(tmp_path, "x.src", content))


def test_source_and_target_of_different_line_counts(tmp_path):
    source, target = written(tmp_path, "x.src", b"1\n2\n3\n"), written(tmp_path, "x.tgt", b"1\n2")
    expected = f"must have equally many lines, but {source} has 3, {target} has 2"
    with pytest.raises(UserError, match=re.escape(expected)):
        check_parallel(source, target)


def test_parallel_files(tmp_path):
    source, target = written(tmp_path, "x.src", b"1\n\n3\n"), written(tmp_path, "x.tgt", b"1\n2\n\n")
    stats = check_parallel(source, target)
    assert [(file.path, file.lines, file.empty_lines) for file in stats] == [(source, 3, 1), (target, 3, 1)]


def test_all_problems_of_all_files_at_once(tmp_path):
    source, target = written(tmp_path, "x.src", b"1\n\xff\n3\r4\n"), written(tmp_path, "x.tgt", b"1\n2\n")
    missing = tmp_path / "y.src"
    with pytest.raises(UserError) as caught:
        check_texts([[source, target], [missing, tmp_path]])
    expected = [
        f"{source}: 1 line(s) have a carriage return",
        f"{source}: 1 line(s) are not valid UTF-8: line 2",
        f"line-aligned files must have equally many lines, but {source} has 3, {target} has 2",
        f"{missing}: cannot be read: No such file or directory",
        f"{tmp_path}: cannot be read: Is a directory",
    ]
    assert len(caught.value.problems) == len(expected)
    for text in expected:
        assert sum(problem.startswith(text) for problem in caught.value.problems) == 1, text


def test_write_lines(tmp_path):
    path = tmp_path / "new" / "x.tgt"
    assert write_lines(path, ["one", "", "zwei ä\u2028"]) == 3
    assert path.read_bytes() == "one\n\nzwei ä\u2028\n".encode()


@pytest.mark.parametrize("line_end", ["\n", "\r"])
def test_nothing_is_lost_when_writing_fails(tmp_path, line_end):
    path = written(tmp_path, "x.tgt", b"old\n")
    with pytest.raises(ValueError, match=r"line 2 .* holds a line end"):
        write_lines(path, ["new", f"with{line_end}end"])
    assert path.read_bytes() == b"old\n"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.process
def test_a_pipe_is_read_as_often_as_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["bash", "-c", "printf 'a\nb\n' >pipe"], cwd=tmp_path):
        assert check_text(pipe) == TextStats(pipe, 2, 0)
    assert list(read_lines(pipe)) == ["a", "b"]
    with open_bytes(pipe) as file:
        assert file.read() == b"a\nb\n"


@pytest.mark.process
def test_a_compressed_pipe(tmp_path):
    pipe = tmp_path / "pipe.gz"
    os.mkfifo(pipe)
    with subprocess.Popen(["bash", "-c", "echo a | gzip >pipe.gz"], cwd=tmp_path):
        assert check_text(pipe).lines == 1


def test_json_that_is_read(tmp_path):
    (tmp_path / "a.json").write_text('{"ä": [1, 2]}', encoding="utf-8")
    assert read_json(tmp_path / "a.json") == read_json_object(tmp_path / "a.json") == {"ä": [1, 2]}
    (tmp_path / "b.json").write_text("[1]")
    assert read_json(tmp_path / "b.json") == [1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "must be JSON: "),
        (b'{"caf\xe9": 1}', "must be UTF-8, but byte 5 is not$"),
        (b"[1]", "must hold a JSON object, but holds a list$"),
    ],
)
def test_json_that_is_not_read(tmp_path, content, message):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"^{path} {message}"):
        read_json_object(path)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"absent\.json: cannot be read: No such file or directory$"):
        read_json(tmp_path / "absent.json")


def sent(path, content):
    """Write to a pipe from a thread."""

    def write():
        with contextlib.suppress(BrokenPipeError):
            path.write_bytes(content)

    os.mkfifo(path)
    thread = threading.Thread(target=write)
    thread.start()
    return thread


def test_the_copy_of_a_pipe_has_no_name(tmp_path, monkeypatch):
    """So nothing stays when the process is killed."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    thread = sent(tmp_path / "pipe", b"a\nb\n")
    copy = bounded_files.readable(tmp_path / "pipe")
    thread.join()
    assert copy.read_bytes() == copy.read_bytes() == b"a\nb\n"
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.parametrize("free", [10**12, 199])
def test_a_pipe_that_holds_too_much(tmp_path, monkeypatch, free):
    monkeypatch.setattr(bounded_files, "LARGEST_STREAM", 100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    thread = sent(tmp_path / "pipe", b"a" * 101)
    with pytest.raises(UserError, match=f"pipe must hold at most {min(100, free // 2)} bytes"):
        check_text(tmp_path / "pipe")
    thread.join()


def test_devices(tmp_path):
    for name in ("zero", "urandom"):
        with pytest.raises(UserError, match=f"/dev/{name} must be a file or a pipe"):
            check_text(Path(f"/dev/{name}"))
    assert check_text(Path(os.devnull), allow_empty=True).lines == 0


def test_files_without_lines(tmp_path):
    (tmp_path / "a").touch()
    assert check_text(tmp_path / "a", allow_empty=True) == TextStats(tmp_path / "a", 0, 0)
    with pytest.raises(UserError, match="at least one line"):
        check_text(tmp_path / "a")


def test_names_without_gz():
    names = {"a.gz": "a", "a.gz.gz": "a.gz", ".gz": ".gz", " .gz": " ", "a": "a"}
    assert {name: plain_name(Path(name)) for name in names} == names


@pytest.mark.parametrize("name", ["a.json", "a.jsonl", "a.ndjson", "a.JSON", "a.JSONL"])
def test_json_lines_are_no_plain_text(tmp_path, name):
    """A reader of plain text would take each object for a text."""
    path = tmp_path / name
    path.write_text('{"src": "a"}\n')
    assert is_json_lines(path) and is_json_lines(path.with_name(f"{name}.gz"))
    with pytest.raises(UserError, match=f"{name} must be plain text, but its name is that of JSON lines"):
        check_text(path)
    assert check_text(path, allow_json=True).lines == 1
    assert not is_json_lines(Path("json")) and not is_json_lines(Path("a.json.txt"))


@pytest.mark.parametrize(("line", "warns"), [('{"src": "a"}', True), ("{} a", False), ("{a}", False), ('["a"]', False)])
def test_json_lines_under_another_name_are_warned_of(tmp_path, caplog, line, warns):
    (tmp_path / "a.txt").write_text(f"{line}\nb\n")
    assert check_text(tmp_path / "a.txt").lines == 2
    assert (f"{tmp_path}/a.txt is read as plain text, but its first line is a JSON object" in caplog.text) == warns
