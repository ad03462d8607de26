"""What is wrong with raw files: every mistake is counted and the first ones are kept, to be reported together."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from s2sft_fairseq.errors import UserError

SHOWN = 20

_KIND_NAMES = {str: "a text", list: "a list", dict: "an object", int: "a whole number", bool: "true or false"}


class MalformedRecordError(Exception):
    """A record that is not as its format says; the text tells what is wrong with it.

    `path` is the file to blame, where the record is spread over several.
    """

    def __init__(self, text: str, path: Path | None = None) -> None:
        super().__init__(text)
        self.path = path


class Malformed:
    """The malformed records of all files of a corpus; the messages of the first `SHOWN` are kept.

    A record counts once, however many mistakes it has and however often it is read: its first mistake is the one told.
    """

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.records: Counter[Path] = Counter()
        self.known: set[tuple[Path, int | str]] = set()

    def add(self, path: Path, where: int | str, what: str) -> None:
        """Note a mistake.

        Args:
            where: the number of the line, from 1, or the name of the record in a file that is not one of lines.
        """
        if (path, where) in self.known:
            return
        self.known.add((path, where))
        self.records[path] += 1
        if len(self.shown) < SHOWN:
            self.shown.append(f"{path}:{where}: {what}" if isinstance(where, int) else f"{path}, {where}: {what}")

    @contextmanager
    def record(self, path: Path, where: int | str) -> Iterator[None]:
        """Read one record: a `MalformedRecordError` within is noted, and goes no further."""
        try:
            yield
        except MalformedRecordError as error:
            self.add(error.path or path, where, str(error))

    def lines(self) -> list[str]:
        """The mistakes that were kept, and how many more there are."""
        more = self.records.total() - len(self.shown)
        return [*self.shown, *([f"and {more:,} more"] if more else [])]

    def by_file(self) -> str:
        """How many records of which file are malformed; of many files, how many."""
        if len(self.records) > SHOWN:
            return f"in {len(self.records):,} files"
        return ", ".join(f"{count:,} in {path}" for path, count in self.records.items())

    def raise_any(self) -> None:
        """Raise a `UserError` that lists the mistakes, if there is one."""
        if self.records:
            total = self.records.total()
            heading = f"{total:,} malformed records ({self.by_file()}); --skip-malformed leaves them out:"
            raise UserError.of(self.lines(), heading)


def take(record: Any, key: str, kind: type) -> Any:
    """The value of a key of a JSON object.

    Raises:
        MalformedRecordError: if there is no such key, or its value is of another kind.
    """
    if not isinstance(record, dict):
        raise MalformedRecordError(f"must be an object, but is {record!r:.60}")
    if key not in record:
        raise MalformedRecordError(f"lacks {key!r}")
    if not isinstance(record[key], kind):
        raise MalformedRecordError(f"{key!r} must be {_KIND_NAMES[kind]}, but is {record[key]!r:.60}")
    return record[key]
