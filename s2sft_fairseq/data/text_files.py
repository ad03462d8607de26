r"""Text files with one example per line, read and counted exactly as ``fairseq-preprocess`` does.

fairseq opens text with universal newlines (fairseq/file_chunker_utils.py): ``\n``, ``\r\n`` and a lone ``\r`` end a
line; U+2028, U+0085, form feeds and others, at which `str.splitlines` breaks, do not. With ``--workers`` above 1 it
seeks to byte offsets and then silently repeats lines if the file has any ``\r``, so such files are refused. On invalid
UTF-8 it fails with a traceback that does not name the line.
"""

import io
import logging
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from s2sft_fairseq.data.bounded_files import (
    BLOCK,
    LONGEST_LINE,
    MARK,
    MARK_PROBLEM,
    READING_ERRORS,
    open_bytes,
    parse_json,
    reading_problem,
    too_long,
)
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import whole_file
from s2sft_fairseq.progress import bar_of_bytes

logger = logging.getLogger(__name__)

SHOWN_LINES = 10
FIELD_SEPARATOR = "[SEP]"
"""Separates the fields of a source in a line of text, for models of any vocabulary."""
_FIELD_END = re.compile(rf" ?{re.escape(FIELD_SEPARATOR)} ?")
_ESCAPED_BYTE = re.compile("[\udc80-\udcff]")  # how Python's "surrogateescape" decodes a byte that is not UTF-8


@dataclass(frozen=True)
class TextStats:
    """The number of lines of a text file, and the number of lines that are empty or only white space."""

    path: Path
    lines: int
    empty_lines: int


def check_text(path: Path, **allowed: bool) -> TextStats:
    """Check one file; see `check_texts`, also for what may be ``allowed``."""
    return check_texts([[path]], **allowed)[0]


def check_parallel(source: Path, target: Path, *, allow_crlf: bool = False) -> tuple[TextStats, TextStats]:
    """Check a source and its line-aligned target; see `check_texts`."""
    source_stats, target_stats = check_texts([[source, target]], allow_crlf=allow_crlf)
    return source_stats, target_stats


def check_texts(
    groups: Iterable[Sequence[Path]],
    *,
    allow_crlf: bool = False,
    allow_empty: bool = False,
    allow_json: bool = False,
) -> list[TextStats]:
    r"""Check all files of groups of line-aligned files, and that the files of a group have equally many lines.

    Empty lines are valid examples: they keep their place, and are only counted and logged.

    Args:
        groups: groups of files that correspond line by line.
        allow_crlf: accept ``\r\n`` as a line end: only for readers that write ``\n``, not for fairseq-preprocess.
        allow_empty: accept files without lines, such as an empty shard of a corpus.
        allow_json: accept files whose names are those of JSON lines, for callers that read them as such.

    Returns:
        A `TextStats` for each file, in the given order.

    Raises:
        UserError: naming all problems of all files: missing or empty files, lines that are not UTF-8 or have a carriage
            return or NUL (the first 10 and their number), different line counts.
    """
    stats: list[TextStats] = []
    problems: list[str] = []
    groups = list(groups)
    with bar_of_bytes("check", [path for group in groups for path in group]) as shown:
        for group in groups:
            found = []
            for path in group:
                if is_json_lines(path) and not allow_json:
                    problems.append(f"{path} must be plain text, but its name is that of JSON lines")
                try:
                    found.append(_inspect(path, allow_crlf, allow_empty, problems, shown.update))
                except READING_ERRORS as error:
                    problems.append(reading_problem(path, error))
            if len({file.lines for file in found}) > 1:
                counts = ", ".join(f"{file.path} has {file.lines}" for file in found)
                problems.append(f"line-aligned files must have equally many lines, but {counts}")
            stats += found
    if problems:
        raise UserError.of(problems)
    for file in stats:
        empty = f", {file.empty_lines} of them empty (kept in order)" if file.empty_lines else ""
        logger.info("%s: %d lines%s", file.path, file.lines, empty)
    return stats


def _inspect(
    path: Path, allow_crlf: bool, allow_empty: bool, problems: list[str], report: Callable[[int], object]
) -> TextStats:
    """Count the lines of `path` and append its errors to `problems`; `report` gets the numbers of bytes."""
    lines = empty = 0
    # A lone carriage return does not count as a line end here, as in most editors; such files are refused anyway.
    wrong: dict[str, list[int]] = {}
    with open_bytes(path) as file:
        while block := file.read(BLOCK):
            block = block if block.endswith(b"\n") else block + file.readline()
            if not (lines or is_json_lines(path)) and _is_object(block.partition(b"\n")[0]):
                logger.warning(f"{path} is read as plain text, but its first line is a JSON object: name it .jsonl")
            if not lines and block.startswith(b"\xef\xbb\xbf"):
                problems.append(f"{path}: {MARK_PROBLEM}")
            for number, mistake in _mistakes(block, allow_crlf):
                wrong.setdefault(mistake, []).append(lines + number)
            texts = block.decode(errors="replace").removesuffix("\n").split("\n")
            lines += len(texts)
            empty += sum(not line or line.isspace() for line in texts)
            report(len(block))
    if not (lines or allow_empty):
        problems.append(f"{path}: is empty, at least one line is needed")
    problems += line_problems(path, wrong)
    return TextStats(path, lines, empty)


def _mistakes(block: bytes, allow_crlf: bool) -> Iterator[tuple[int, str]]:
    """Yield the number of each wrong line, from 1, with its error."""
    if b"\r" not in block and b"\0" not in block and _is_utf8(block):
        return  # the usual case, for which a check of the whole block is much faster than line by line
    for number, line in enumerate(io.BytesIO(block), 1):
        text = line.removesuffix(b"\n")
        if text.endswith(b"\r") and text != line and allow_crlf:
            text = text[:-1]
        if b"\r" in text:
            yield number, _carriage_return_problem(text, allow_crlf)
        if b"\0" in text:
            yield number, "hold NUL characters (is the file UTF-16?)"
        if not _is_utf8(text):
            yield number, "are not valid UTF-8"


def _is_object(line: bytes) -> bool:
    """Return whether a line of plain text is a JSON object."""
    try:
        return line.startswith(b"{") and isinstance(parse_json(line.decode()), dict)
    except ValueError:
        return False


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def line_problems(path: Path, wrong: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Yield a message for each kind of error in a file, with the number of its lines and the first line numbers."""
    for what, numbers in wrong.items():
        shown = ", ".join(map(str, numbers[:SHOWN_LINES])) + (", ..." if len(numbers) > SHOWN_LINES else "")
        yield f"{path}: {len(numbers)} line(s) {what}: line {shown}"


def split_fields(line: str, separator: str | None = None) -> list[str]:
    """Return the fields of a source that is a line of text.

    Args:
        line: the line.
        separator: the text between two fields; None: `FIELD_SEPARATOR`, with or without a space on either side.
    """
    return line.split(separator) if separator else _FIELD_END.split(line)


def plain_name(path: Path) -> str:
    """Return the name of a file without ``.gz``; a file that is called ``.gz`` is not compressed."""
    return path.stem if path.suffix == ".gz" else path.name


JSON_SUFFIXES = (".jsonl", ".json", ".ndjson")
"""The ends of the names of files with a JSON object on each line, in lower case; the s2s-ft program names them
``.json``."""


def is_json_lines(path: Path) -> bool:
    """Return whether a file has JSON objects, one per line, judging by its name."""
    return plain_name(path).lower().endswith(JSON_SUFFIXES)


def is_parquet(path: Path) -> bool:
    """Return whether a file is a Parquet file, judging by its name."""
    return path.suffix == ".parquet"


def has_fields(path: Path) -> bool:
    """Return whether a file has examples with named fields, not plain text, judging by its name."""
    return is_json_lines(path) or is_parquet(path)


def _carriage_return_problem(text: bytes, allow_crlf: bool) -> str:
    if not allow_crlf and text.endswith(b"\r") and text.count(b"\r") == 1:
        return "end in \\r\\n where \\n alone is needed (fairseq-preprocess misreads them with several workers)"
    return "have a carriage return within the line (fairseq-preprocess would break the line there)"


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, without line ends; check the file with `check_texts` first.

    Raises:
        UserError: if the file begins with a byte order mark, or a line has more than `LONGEST_LINE` characters.
    """
    with io.TextIOWrapper(open_bytes(path), encoding="utf-8") as file:
        number = 0
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise UserError(too_long(path, number))
            if number == 1 and line.startswith(MARK):
                raise UserError(f"{path}: {MARK_PROBLEM}")
            yield line.removesuffix("\n")


def streamed_lines(name: str) -> Iterator[tuple[str, str]]:
    """Yield each line of a file or of the standard input as it comes, with the error in it; "" if there is none.

    Bytes that are not UTF-8 become U+FFFD, so that one line does not end the work on all others. A byte order mark at
    the beginning is skipped.

    Args:
        name: the path of a file, decompressed if it ends in ``.gz``, or ``-``, the standard input.

    Raises:
        UserError: if a line has more than `LONGEST_LINE` characters, or a ``.gz`` file is damaged.
    """
    try:
        with _opened_stream(name) as stream:
            number = 0
            while line := stream.readline(LONGEST_LINE + 1):
                number += 1
                if len(line) > LONGEST_LINE:
                    raise UserError(too_long(Path(name), number))
                yield _with_problem(line.removesuffix("\n"))
    except READING_ERRORS as error:
        if getattr(error, "filename", None):  # it cannot be opened
            raise
        raise UserError(reading_problem(Path(name), error)) from None


@contextmanager
def _opened_stream(name: str) -> Iterator[TextIO]:
    how: Any = {"encoding": "utf-8-sig", "errors": "surrogateescape"}
    if name != "-":
        path = Path(name)
        opened = open_bytes(path) if path.is_file() else path.open("rb")  # lines of a pipe are answered as they come
        with io.TextIOWrapper(opened, **how) as file:
            yield file
        return
    if isinstance(sys.stdin, io.TextIOWrapper):  # a program that calls this one may have replaced it
        sys.stdin.reconfigure(**how)
    yield sys.stdin


def _with_problem(text: str) -> tuple[str, str]:
    found = _ESCAPED_BYTE.search(text)
    if found is None:
        return text, ""
    before = text[: found.start()].encode("utf-8", "surrogateescape")
    byte = ord(found[0]) - 0xDC00
    readable = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return readable, f"can't decode byte 0x{byte:02x}, byte {len(before) + 1} of the line"


def not_utf8(option: str, name: str, wrong: Mapping[int, str]) -> UserError:
    """Return the error about lines of `streamed_lines` that are not UTF-8.

    Args:
        option: the option that names the file.
        name: the name of the file.
        wrong: what is wrong with each line, by its number.
    """
    number, problem = next(iter(wrong.items()))
    (lines,) = line_problems(Path(name), {"are not valid UTF-8": list(wrong)})
    return UserError(f"{option} {name}: must be UTF-8: line {number}: {problem}; {lines}")


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write lines to a file; if the run is interrupted, a former file stays unchanged.

    Returns:
        The number of lines written.

    Raises:
        ValueError: if a line contains a line end.
    """
    count = 0
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            if "\n" in line or "\r" in line:
                raise ValueError(f"line {count + 1} for {path} holds a line end: {line!r}")
            file.write(line + "\n")
            count += 1
    return count
