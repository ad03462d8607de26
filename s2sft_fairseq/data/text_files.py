"""Text files of one example a line, read and counted exactly as ``fairseq-preprocess`` does; and JSON.

fairseq opens text with universal newlines (fairseq/file_chunker_utils.py): ``\\n``, ``\\r\\n`` and a lone ``\\r`` end a
line; U+2028, U+0085, form feeds and the like, at which `str.splitlines` would break, do not. With ``--workers`` above 1
it seeks to byte offsets and then repeats lines of a file that holds any ``\\r``, without a word: so none may get there.
Invalid UTF-8 makes it fail with a traceback that names no line.
"""

import gzip
import io
import json
import logging
import re
import shutil
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import whole_file

logger = logging.getLogger(__name__)

SHOWN_LINES = 10
LONGEST_LINE = 2**26
"""Bytes of a line; no text that a model reads is a hundredth of it."""
LARGEST_FILE = 2**28
"""Bytes of a file that is read as a whole, unpacked: the largest tokenizers and corpora of JSON have a fifth of it."""
_DEEPEST_JSON = 100
_LARGEST_INTEGER = 2**63
_PERHAPS_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
_BLOCK = 2**20  # bytes of lines that are looked at together
READING_ERRORS = (OSError, EOFError, zlib.error)  # the last two: of damaged .gz files


@dataclass(frozen=True)
class TextStats:
    """What a text file holds: its lines, and how many of them are empty or only white space."""

    path: Path
    lines: int
    empty_lines: int


def check_text(path: Path, *, allow_crlf: bool = False) -> TextStats:
    """Check one file; see `check_texts`."""
    return check_texts([[path]], allow_crlf=allow_crlf)[0]


def check_parallel(source: Path, target: Path, *, allow_crlf: bool = False) -> tuple[TextStats, TextStats]:
    """Check a source and its line-aligned target; see `check_texts`."""
    source_stats, target_stats = check_texts([[source, target]], allow_crlf=allow_crlf)
    return source_stats, target_stats


def check_texts(groups: Iterable[Sequence[Path]], *, allow_crlf: bool = False) -> list[TextStats]:
    """Check every file of every group of line-aligned files, and that the files of a group have equally many lines.

    Empty lines are examples like others: they keep their place, and are only counted and logged.

    Args:
        groups: files of one group belong together line by line.
        allow_crlf: accept ``\\r\\n`` as a line end: for readers that write ``\\n``, never before fairseq-preprocess.

    Returns:
        One `TextStats` a file, in the order given.

    Raises:
        UserError: names all problems of all files: missing or empty files, lines that are not UTF-8 or hold a carriage
            return or NUL (the first 10 and their number), different line counts.
    """
    stats: list[TextStats] = []
    problems: list[str] = []
    for group in groups:
        found = []
        for path in group:
            try:
                found.append(_inspect(path, allow_crlf, problems))
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


def _inspect(path: Path, allow_crlf: bool, problems: list[str]) -> TextStats:
    """Count the lines of `path` and append what is wrong with it to `problems`."""
    lines = empty = 0
    # fairseq counts a lone carriage return as a line end, but these files are refused: numbers are those of an editor.
    wrong: dict[str, list[int]] = {}
    with open_bytes(path) as file:
        while block := file.read(_BLOCK):
            block = block if block.endswith(b"\n") else block + file.readline()
            if not lines and block.startswith(b"\xef\xbb\xbf"):
                problems.append(f"{path}: starts with a byte order mark (U+FEFF); save it as UTF-8 without one")
            for number, mistake in _mistakes(block, allow_crlf):
                wrong.setdefault(mistake, []).append(lines + number)
            texts = block.decode(errors="replace").removesuffix("\n").split("\n")
            lines += len(texts)
            empty += sum(not line or line.isspace() for line in texts)
    if not lines:
        problems.append(f"{path}: is empty, at least one line is needed")
    problems += line_problems(path, wrong)
    return TextStats(path, lines, empty)


def _mistakes(block: bytes, allow_crlf: bool) -> Iterator[tuple[int, str]]:
    """Yield the number of each wrong line, from 1, and what is wrong with it."""
    if b"\r" not in block and b"\0" not in block and _is_utf8(block):
        return  # nearly always, and found out much faster than line by line
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


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def line_problems(path: Path, wrong: Mapping[str, Sequence[int]]) -> Iterator[str]:
    """Word each mistake of a file, with how many lines make it and the numbers of the first ones."""
    for what, numbers in wrong.items():
        shown = ", ".join(map(str, numbers[:SHOWN_LINES])) + (", ..." if len(numbers) > SHOWN_LINES else "")
        yield f"{path}: {len(numbers)} line(s) {what}: line {shown}"


def reading_problem(path: Path, error: BaseException) -> str:
    """Word one of `READING_ERRORS`."""
    return f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"


class LineReader(io.BufferedReader):
    """Reads the bytes or the lines of a file; a line may be longer than memory, for 60 kB of gzip unpack to 64 MiB."""

    def __init__(self, path: Path, raw: Any) -> None:
        super().__init__(raw)
        self._path = path

    def readline(self, size: int | None = -1) -> bytes:
        """Read the next line, as iterating does; `size` is ignored.

        Raises:
            UserError: if it has more than `LONGEST_LINE` bytes.
        """
        line = super().readline(LONGEST_LINE + 1)
        if len(line) > LONGEST_LINE:
            before = self.tell() - len(line)
            self.seek(0)
            lines = sum(self.read(min(_BLOCK, before - at)).count(b"\n") for at in range(0, before, _BLOCK))
            raise UserError(_too_long(self._path, lines + 1))
        return line


def _too_long(path: Path, number: int) -> str:
    return f"{path}, line {number}: must have at most {LONGEST_LINE:,} bytes, but has more"


def open_bytes(path: Path) -> LineReader:
    """Open a file or a pipe for reading, decompressed if its name ends in ``.gz``; a pipe can be opened again."""
    file = readable(path)
    return LineReader(path, gzip.open(file, "rb") if path.suffix == ".gz" else io.FileIO(file))


def readable(path: Path) -> Path:
    """Return a file with the contents of `path` that can be read several times: itself, unless it is a pipe."""
    is_stream = path.exists() and not path.is_file() and not path.is_dir()
    return Path(_copy_of_stream(path.absolute(), path.stat().st_ino).name) if is_stream else path


@cache
def _copy_of_stream(path: Path, inode: int) -> "tempfile._TemporaryFileWrapper[bytes]":
    """A file of what comes through a pipe, which `inode` tells from a later one of that name.

    It is removed when the process ends.
    """
    copy = tempfile.NamedTemporaryFile(prefix="s2sft-pipe-")  # noqa: SIM115
    with path.open("rb") as stream:
        shutil.copyfileobj(stream, copy)
    copy.flush()
    return copy


def plain_name(path: Path) -> str:
    """Return the name of a file, without the ``.gz`` of a compressed one."""
    return path.name.removesuffix(".gz")


def is_json_lines(path: Path) -> bool:
    """Tell by its name whether a file holds JSON objects, one a line."""
    return plain_name(path).endswith(".jsonl")


def _carriage_return_problem(text: bytes, allow_crlf: bool) -> str:
    if not allow_crlf and text.endswith(b"\r") and text.count(b"\r") == 1:
        return "end in \\r\\n where \\n alone is needed (fairseq-preprocess misreads them with several workers)"
    return "hold a carriage return that ends no line (fairseq-preprocess would break the line there)"


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a file, without their ends; `check_texts` finds what is wrong with it.

    Raises:
        UserError: if one has more than `LONGEST_LINE` bytes.
    """
    with io.TextIOWrapper(open_bytes(path), encoding="utf-8") as file:
        number = 0
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise UserError(_too_long(path, number))
            yield line.removesuffix("\n")


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write a file of lines; an interrupted run leaves the former file whole.

    Returns:
        The number of lines written.

    Raises:
        ValueError: if a line holds a line end.
    """
    count = 0
    with whole_file(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as file:
        for line in lines:
            if "\n" in line or "\r" in line:
                raise ValueError(f"line {count + 1} for {path} holds a line end: {line!r}")
            file.write(line + "\n")
            count += 1
    return count


def read_bytes(path: Path) -> bytes:
    """Read a whole file, decompressed if its name ends in ``.gz``.

    Raises:
        UserError: if it cannot be read, or has more than `LARGEST_FILE` bytes.
    """
    try:
        with open_bytes(path) as file:
            content = file.read(LARGEST_FILE + 1)
    except READING_ERRORS as error:
        raise UserError(reading_problem(path, error)) from None
    if len(content) > LARGEST_FILE:
        raise UserError(f"{path}: must have at most {LARGEST_FILE:,} bytes, unpacked, but has more")
    return content


def read_text(path: Path) -> str:
    """Read a whole file of text as it is: line ends are not touched, for some vocabularies hold them as tokens.

    Raises:
        UserError: if it cannot be read, is no UTF-8, or is too large.
    """
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} must be UTF-8, but byte {error.start} is not") from None


def whole_number(text: str) -> int | None:
    """Return the number that a text of up to 18 digits says; None of any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def parse_json(text: str | bytes, *, half_pairs: bool = False) -> Any:
    """Return the value of JSON that comes from anywhere.

    Args:
        text: the JSON.
        half_pairs: let halves of surrogate pairs pass, for a caller that tells where they are.

    Raises:
        ValueError: if it is no JSON, or no value of use: nested more than 100 deep, with a whole number of more than
            64 bits, or with half of a surrogate pair, which no file could hold. Bytes that are no UTF-8 raise the kind
            `UnicodeDecodeError`.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    try:
        value = json.loads(text, parse_int=_integer)
    except RecursionError:
        raise ValueError(f"it is nested more than {_DEEPEST_JSON} deep") from None
    if text.count("[") + text.count("{") > _DEEPEST_JSON and not _is_flat(value):
        raise ValueError(f"it is nested more than {_DEEPEST_JSON} deep")
    if not half_pairs and _PERHAPS_HALF_PAIR.search(text) and has_half_pair(value):
        raise ValueError("it has half of a surrogate pair")
    return value


def has_half_pair(value: Any) -> bool:
    """Whether a value of JSON has half of a surrogate pair, which no file can hold."""
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False


def _integer(text: str) -> int:
    """Return a whole number; Python itself would take those of 4,300 digits, with which nothing can be computed."""
    if len(text) > 20 or not -_LARGEST_INTEGER <= int(text) < _LARGEST_INTEGER:
        raise ValueError(f"the whole number {text:.40} has more than 64 bits")
    return int(text)


def _is_flat(value: Any) -> bool:
    """Whether a value is nested at most `_DEEPEST_JSON` deep, by its values of each depth."""
    level = [value]
    for _ in range(_DEEPEST_JSON):
        lists = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = list(chain.from_iterable(lists))
        if not level:
            return True
    return False


def read_json(path: Path) -> Any:
    """Read a JSON file, decompressed if its name ends in ``.gz``.

    Raises:
        UserError: if it cannot be read or is no JSON that `parse_json` takes.
    """
    text = read_text(path)
    try:
        return parse_json(text)
    except ValueError as error:
        raise UserError(f"{path} must be JSON: {error}") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        UserError: if it cannot be read or holds something else.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a JSON object, but holds a {type(value).__name__}")
    return value
