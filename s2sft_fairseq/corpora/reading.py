"""Shared code of the corpus readers: the `Example` that they yield, malformed records, and reading of raw files.

All malformed records are counted, and the messages of the first ones are kept to be reported together.
"""

import codecs
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from s2sft_fairseq.data.bounded_files import READING_ERRORS, open_bytes, read_json, reading_problem
from s2sft_fairseq.data.text_files import FIELD_SEPARATOR
from s2sft_fairseq.errors import UserError

# Separates the sentences of a summary, as in UniLM and s2s-ft; a token of its own.
SENTENCE_SEPARATOR = "[X_SEP]"


@dataclass(frozen=True, slots=True)
class Example:
    """A source of one or more fields and its references, as they are in the raw file.

    `path` and `where`, a line number or the name of a record, are for messages. So are `paths`: for line-aligned files,
    the files of the fields of the source and of the reference.
    """

    path: Path
    where: int | str
    source: tuple[str, ...]
    references: tuple[str, ...]
    paths: tuple[Path, ...] = ()

    def source_line(self) -> str:
        """Return the fields on one line, joined by `FIELD_SEPARATOR`.

        Raises:
            MalformedRecordError: if all fields are empty, or one contains the separator.
        """
        fields = [one_line(field) for field in self.source]
        if not any(fields):
            raise MalformedRecordError("the source is empty")
        for number, field in enumerate(fields):
            if FIELD_SEPARATOR in field:
                path = self.paths[number] if self.paths else None
                raise MalformedRecordError(f"the source holds {FIELD_SEPARATOR}, which separates fields", path)
        return f" {FIELD_SEPARATOR} ".join(fields)

    def reference_lines(self) -> list[str]:
        """Return the references, each on one line.

        Raises:
            MalformedRecordError: if there is no reference, or one is empty.
        """
        lines = [one_line(reference) for reference in self.references]
        if not lines or not all(lines):
            path = self.paths[-1] if self.paths else None
            raise MalformedRecordError("has no target" if not lines else "the target is empty", path)
        return lines


def one_line(text: str) -> str:
    """Return a text with each run of white space, including line ends, replaced by one space."""
    return " ".join(text.split())


UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""The beginnings of a file that is UTF-16."""
SHOWN = 20
MOST_KNOWN = 1_000_000

_KIND_NAMES = {str: "a text", list: "a list", dict: "an object", int: "a whole number", bool: "true or false"}


class MalformedRecordError(Exception):
    """Raised for a record that violates its format; the text describes the error.

    `path` is the file with the error, if the record is spread over several files.
    """

    def __init__(self, text: str, path: Path | None = None) -> None:
        super().__init__(text)
        self.path = path


class Malformed:
    """The malformed records in all files of a corpus; the messages of the first `SHOWN` are kept.

    A record counts once, even if it has several errors or is read several times; only its first error is kept. This
    holds for the first million records; more would fill the memory.
    """

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.notes: list[str] = []
        self.records: Counter[Path] = Counter()
        self.known: set[tuple[Path, int | str]] = set()

    def add(self, path: Path, where: int | str, what: str) -> None:
        """Add a malformed record.

        Args:
            path: the file.
            where: the number of the line, from 1, or the name of the record in a file that does not consist of lines.
            what: the error.
        """
        if (path, where) in self.known:
            return
        if len(self.known) < MOST_KNOWN:
            self.known.add((path, where))
        self.records[path] += 1
        if len(self.shown) < SHOWN:
            self.shown.append(f"{path}:{where}: {what}" if isinstance(where, int) else f"{path}, {where}: {what}")

    def note(self, text: str) -> None:
        """Add something that the user should know about how the files are read; each text counts once."""
        if text not in self.notes:
            self.notes.append(text)

    @contextmanager
    def record(self, path: Path, where: int | str) -> Iterator[None]:
        """Context manager in which one record is read: a `MalformedRecordError` is added and not raised."""
        try:
            yield
        except MalformedRecordError as error:
            self.add(error.path or path, where, str(error))

    def lines(self) -> list[str]:
        """Return the messages that were kept, and how many more records are malformed."""
        more = self.records.total() - len(self.shown)
        return [*self.shown, *([f"and {more:,} more"] if more else [])]

    def by_file(self) -> str:
        """Return the number of malformed records in each file; if there are many files, only their number."""
        if len(self.records) > SHOWN:
            return f"in {len(self.records):,} files"
        return ", ".join(f"{count:,} in {path}" for path, count in self.records.items())

    def raise_any(self) -> None:
        """Raise an error if any record is malformed.

        Raises:
            UserError: listing the malformed records.
        """
        if self.records:
            total = self.records.total()
            heading = f"{total:,} malformed records ({self.by_file()}); --skip-malformed leaves them out:"
            raise UserError.of(self.lines(), heading)


def take(record: Any, key: str, kind: type) -> Any:
    """Return the value of a key of a JSON object.

    Raises:
        MalformedRecordError: if there is no such key, or its value has another type.
    """
    if not isinstance(record, dict):
        raise MalformedRecordError(f"must be an object, but is {record!r:.60}")
    if key not in record:
        raise MalformedRecordError(f"lacks {key!r}")
    if not isinstance(record[key], kind):
        raise MalformedRecordError(f"{key!r} must be {_KIND_NAMES[kind]}, but is {record[key]!r:.60}")
    return record[key]


def find(folder: Path, name: str) -> Path | None:
    """Return the file of this name, or its ``.gz``; None if neither exists."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def require(folder: Path, *names: str) -> list[Path]:
    """Return the files of these names, plain or ``.gz``.

    Raises:
        UserError: naming all that are missing.
    """
    found = {name: find(folder, name) for name in names}
    if missing := [name for name, path in found.items() if path is None]:
        raise UserError(f"--raw {folder} must hold {', '.join(names)} (or .gz), but lacks {', '.join(missing)}")
    return [path for path in found.values() if path is not None]


def numbered_lines(path: Path, malformed: Malformed) -> Iterator[tuple[int, str | None]]:
    """Yield the lines of a file with their numbers, from 1, without line ends; None for a line that is not UTF-8.

    A byte order mark of UTF-8 at the beginning is left out.

    Raises:
        UserError: if the file cannot be read, or is UTF-16.
    """
    try:
        with open_bytes(path) as file:
            for number, line in enumerate(file, 1):
                if number == 1 and line.startswith(UTF_16):
                    raise UserError(f"{path} must be UTF-8, but begins as UTF-16 does: save it as UTF-8")
                if number == 1:
                    line = line.removeprefix(codecs.BOM_UTF8)
                try:
                    yield number, line.decode("utf-8").rstrip("\r\n")
                except UnicodeDecodeError:
                    malformed.add(path, number, "is not valid UTF-8")
                    yield number, None
    except READING_ERRORS as error:
        raise UserError(reading_problem(path, error)) from None


def aligned_lines(paths: Sequence[Path], malformed: Malformed) -> Iterator[tuple[int, list[str]]]:
    """Yield the corresponding lines of line-aligned files with their number; skip them if one is not UTF-8.

    Raises:
        UserError: if a file cannot be read; at the end, if the files have different numbers of lines.
    """
    lines = [0] * len(paths)
    for row in zip_longest(*(numbered_lines(path, malformed) for path in paths)):
        lines = [last if cell is None else cell[0] for last, cell in zip(lines, row, strict=True)]
        texts = [cell[1] for cell in row if cell is not None]
        if len(texts) == len(paths) and None not in texts:
            yield lines[0], [text for text in texts if text is not None]
    if len(set(lines)) > 1:
        counts = ", ".join(f"{path} has {count:,}" for path, count in zip(paths, lines, strict=True))
        raise UserError(f"line-aligned files must have equally many lines, but {counts}")


def read_data_list(path: Path) -> list[Any]:
    """Return the list ``data`` of a file, which holds the records in SQuAD and CoQA.

    Raises:
        UserError: if the file cannot be read or has no such list.
    """
    try:
        return take(read_json(path), "data", list)
    except MalformedRecordError as error:
        raise UserError(f"{path} must hold an object with a list `data`, but {error}") from None
