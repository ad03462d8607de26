"""Read untrusted files in bounded memory: as bytes, as lines, as a whole and as JSON.

The size of a file does not limit its unpacked size, the length of its lines or the depth of its JSON. The functions of
this module read up to a limit and raise an error that names the file if it is exceeded.
"""

import gzip
import io
import json
import os
import re
import shutil
import stat
import sys
import tempfile
import tomllib
import zlib
from collections.abc import Iterator
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from s2sft_fairseq.checksums import check_files
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.received import pointer_problem

LONGEST_LINE = 2**26
"""Maximum number of bytes of a line; texts for models are less than a hundredth of it."""
LARGEST_FILE = 2**27
"""Maximum number of unpacked bytes of a file that is read as a whole; the largest tokenizers and JSON corpora have half
of it."""
LARGEST_STREAM = 2**36
"""Maximum number of bytes of a pipe, which is copied to a temporary file; the largest corpora have a fraction of it."""
_DEEPEST_JSON = 100
_LARGEST_TOML = 2**16
"""Maximum number of characters of a TOML file: a hundred settings have a tenth of it."""
_DEEPEST_KEY = 100
"""Maximum number of dots and brackets of a line of TOML. Python reads a key in quadratic time of its parts."""
# Bytes for a JSON text and its values; with the file, 1 GiB. The largest tokenizer (0.9 million pieces) needs 750 MiB.
_MOST_MEMORY = 900 * 2**20
# Bytes of memory that Python may need for a list, an object, a name and another value: for lists and objects more than
# what was measured, because they also take time.
_MEMORY_OF = {"[": 250, "{": 400, ":": 150, ",": 100}
_SHORT_JSON = 2**20  # characters that cannot need that much memory
_LARGEST_INTEGER = 2**63
_NO_LIMIT = str(int(1e30))  # what transformers writes as model_max_length of a tokenizer that has none
_HALF_PAIR = re.compile("[\ud800-\udfff]")
_PERHAPS_HALF_PAIR = re.compile(r"\\u[dD][89a-fA-F]")
MARK = "\ufeff"
MARK_PROBLEM = "starts with a byte order mark (U+FEFF), a BOM; save it as UTF-8 without one"
BLOCK = 2**20  # bytes of lines that are checked together
READING_ERRORS = (OSError, EOFError, zlib.error)  # the last two come from damaged .gz files


def reading_problem(path: Path, error: BaseException) -> str:
    """Return the message for one of `READING_ERRORS`."""
    return f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}"


class LineReader(io.BufferedReader):
    """Reader of bytes or lines with a limit for the length of a line, as 60 kB of gzip may unpack to 64 MiB."""

    def __init__(self, path: Path, raw: Any) -> None:
        super().__init__(raw)
        self._path = path

    def readline(self, size: int | None = -1) -> bytes:
        """Return the next line; iteration uses this method, too. `size` is ignored.

        Raises:
            UserError: if the line has more than `LONGEST_LINE` bytes.
        """
        line = super().readline(LONGEST_LINE + 1)
        if len(line) > LONGEST_LINE:
            before = self.tell() - len(line)
            self.seek(0)
            lines = sum(self.read(min(BLOCK, before - at)).count(b"\n") for at in range(0, before, BLOCK))
            raise UserError(too_long(self._path, lines + 1))
        return line


def too_long(path: Path, number: int) -> str:
    """Return the message for a line of more than `LONGEST_LINE` bytes."""
    return f"{path}, line {number}: must have at most {LONGEST_LINE:,} bytes, but has more"


def open_bytes(path: Path) -> LineReader:
    """Open a file or a pipe for reading, decompressed if its name ends in ``.gz``; pipes can be opened repeatedly.

    Raises:
        UserError: the file differs from its checksum in the ``SHA256SUMS`` beside it.
    """
    check_files(path)
    file = readable(path)
    return LineReader(path, gzip.open(file, "rb") if path.suffix == ".gz" else io.FileIO(file))


def readable(path: Path) -> Path:
    """Return a file with the contents of `path` that can be read repeatedly: `path`, or for a pipe a copy.

    Raises:
        UserError: `path` is a device such as /dev/zero, a pipe holds more than can be copied, or the file is a
            pointer of git-LFS.
    """
    is_stream = path.exists() and not path.is_file() and not path.is_dir()
    if not is_stream:
        if problem := pointer_problem(path):
            raise UserError(problem)
        return path
    copy = _copy_of_stream(path.absolute(), path.stat().st_ino)
    return Path(f"/proc/self/fd/{copy.fileno()}")


@cache
def _copy_of_stream(path: Path, inode: int) -> IO[bytes]:
    """Return a temporary file with the contents of a pipe. It has no name, so that nothing stays if this process ends.

    `inode` distinguishes the pipe from a later one with the same name.

    Raises:
        UserError: see `readable`.
    """
    folder = tempfile.gettempdir()
    most = min(LARGEST_STREAM, shutil.disk_usage(folder).free // 2)
    copy = tempfile.TemporaryFile()  # noqa: SIM115
    with path.open("rb") as stream:
        if _is_endless(stream.fileno()):
            raise UserError(f"{path} must be a file or a pipe, but is a device")
        while block := stream.read(BLOCK):
            if copy.tell() + len(block) > most:
                copy.close()
                raise UserError(
                    f"{path} must hold at most {most:,} bytes, as it is no file and is copied to {folder} (at most "
                    f"half of what is free there, and {LARGEST_STREAM:,}), but holds more: give a file, or set TMPDIR"
                )
            copy.write(block)
    copy.flush()
    return copy


def _is_endless(descriptor: int) -> bool:
    """Return whether a file is a device other than a terminal and /dev/null."""
    state = os.fstat(descriptor)
    is_device = stat.S_ISCHR(state.st_mode) or stat.S_ISBLK(state.st_mode)
    return is_device and not os.isatty(descriptor) and not os.path.samestat(state, os.stat(os.devnull))


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


def read_text(path: Path, *, mark: bool = False) -> str:
    """Read a whole text file without translating line ends, which are tokens in some vocabularies.

    Args:
        path: the file.
        mark: leave a byte order mark out; otherwise it is an error, because it would become part of a token.

    Raises:
        UserError: if it cannot be read, is not UTF-8, begins with a byte order mark, or is too large.
    """
    try:
        text = read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} must be UTF-8, but byte {error.start} is not") from None
    if text.startswith(MARK) and not mark:
        raise UserError(f"{path}: {MARK_PROBLEM}")
    return text.removeprefix(MARK)


def whole_number(text: str) -> int | None:
    """Return the number that a text of up to 18 digits stands for; None for any other text."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def parse_json(text: str | bytes, *, half_pairs: bool = False) -> Any:
    """Return the value of untrusted JSON.

    Args:
        text: the JSON.
        half_pairs: accept lone surrogates, for callers that report their place.

    Raises:
        ValueError: if the text is not JSON, has more than 100 levels, may need more than 900 MiB of memory, or has a
            whole number of more than 64 bits (but for that of `_NO_LIMIT`, which becomes a float) or a lone surrogate,
            which UTF-8 cannot encode. For bytes that are not UTF-8, its subclass `UnicodeDecodeError`.
    """
    if isinstance(text, bytes):
        text = text.decode("utf-8")
    if len(text) > _SHORT_JSON and _memory(text) > _MOST_MEMORY:
        raise ValueError(f"its text and values may need more than {_MOST_MEMORY:,} bytes of memory")
    try:
        value = json.loads(text, parse_int=_integer)
    except RecursionError:
        raise ValueError(f"it is nested more than {_DEEPEST_JSON} deep") from None
    if text.count("[") + text.count("{") > _DEEPEST_JSON and any(islice(_levels(value), _DEEPEST_JSON, None)):
        raise ValueError(f"it is nested more than {_DEEPEST_JSON} deep")
    if not half_pairs and _PERHAPS_HALF_PAIR.search(text) and has_half_pair(value):
        raise ValueError("it has half of a surrogate pair")
    return value


def _memory(text: str) -> int:
    """Return about how many bytes of memory a JSON text and its values need at most."""
    return 2 * sys.getsizeof(text) + sum(text.count(mark) * memory for mark, memory in _MEMORY_OF.items())


def has_half_pair(value: Any) -> bool:
    """Return whether a JSON value has a lone surrogate, which UTF-8 cannot encode."""
    parents = chain.from_iterable(_levels([value]))
    parts = chain.from_iterable(chain(each, each.values()) if isinstance(each, dict) else each for each in parents)
    return any(_HALF_PAIR.search(part) for part in parts if isinstance(part, str))


def _integer(text: str) -> float:
    """Return a whole number of at most 64 bits, or `_NO_LIMIT` as a float; Python itself accepts up to 4,300 digits."""
    if text == _NO_LIMIT:
        return float(text)
    number = int(text) if len(text) <= 20 else _LARGEST_INTEGER
    if not -_LARGEST_INTEGER <= number < _LARGEST_INTEGER:
        raise ValueError(f"the whole number {text:.40} has more than 64 bits")
    return number


def _levels(value: Any) -> Iterator[list[Any]]:
    """Yield the lists and objects of each level of a JSON value; the search is breadth-first, not recursive."""
    level = [value] if isinstance(value, dict | list) else []
    while level:
        yield level
        children = chain.from_iterable(each.values() if isinstance(each, dict) else each for each in level)
        level = [each for each in children if isinstance(each, dict | list)]


def parse_toml(text: str) -> dict[str, Any]:
    """Return the value of untrusted TOML.

    Raises:
        ValueError: if the text is not TOML, is too long, or has a key of too many parts or a value of too many levels.
    """
    for number, line in enumerate(text.split("\n"), 1):
        if sum(map(line.count, ".[{")) > _DEEPEST_KEY:
            raise ValueError(f"is nested deeply: line {number} has more than {_DEEPEST_KEY} dots and brackets")
    if len(text) > _LARGEST_TOML:
        raise ValueError(f"has more than {_LARGEST_TOML:,} characters")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("is nested deeply") from None
    except ValueError as error:
        raise ValueError(f"is not: {error}") from None


def read_json(path: Path) -> Any:
    """Read a JSON file, decompressed if its name ends in ``.gz``.

    Raises:
        UserError: if it cannot be read, or `parse_json` rejects it.
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
