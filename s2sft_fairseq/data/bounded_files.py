"""Reading files that come from anywhere: as bytes, as lines, as a whole and as JSON, in bounded memory.

A file says nothing about what it unpacks to, how long its lines are or how deep its JSON is. Whatever is read here is
read up to a limit, and a file beyond it is refused by name.
"""

import gzip
import io
import json
import re
import shutil
import tempfile
import zlib
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from s2sft_fairseq.errors import UserError

LONGEST_LINE = 2**26
"""Bytes of a line; no text that a model reads is a hundredth of it."""
LARGEST_FILE = 2**28
"""Bytes of a file that is read as a whole, unpacked: the largest tokenizers and corpora of JSON have a fifth of it."""
_DEEPEST_JSON = 100
_LARGEST_INTEGER = 2**63
_PERHAPS_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
BLOCK = 2**20  # bytes of lines that are looked at together
READING_ERRORS = (OSError, EOFError, zlib.error)  # the last two: of damaged .gz files


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
            lines = sum(self.read(min(BLOCK, before - at)).count(b"\n") for at in range(0, before, BLOCK))
            raise UserError(too_long(self._path, lines + 1))
        return line


def too_long(path: Path, number: int) -> str:
    """Word what is wrong with a line of more than `LONGEST_LINE` bytes."""
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
