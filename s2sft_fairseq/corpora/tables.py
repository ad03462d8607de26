"""Tables of text: rows of cells between tabs, commas or semicolons, with quoted cells and a header.

A cell in quotation marks may hold delimiters, line ends, and quotation marks, which are doubled. In CSV each cell that
begins with a quotation mark is quoted. Tables with tabs are often written without any quoting, so that their quotation
marks belong to the text: there a cell is quoted only if it must be, or if all cells of its row are.
"""

import re
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

from s2sft_fairseq.corpora.reading import Malformed, MalformedRecordError, numbered_lines
from s2sft_fairseq.data.text_files import plain_name
from s2sft_fairseq.errors import UserError

TAB = "\t"
DELIMITERS = {".tsv": (TAB,), ".csv": (",", ";", TAB)}
"""The delimiters that a table may have, by the end of its name."""
MOST_LINES = 10_000
"""Maximum number of lines of a cell."""
_LOOKED_AT = 100
"""Number of rows from which a header is recognised."""
LEAST_ROWS, WORDS_OF_A_CELL = 5, 2
"""Rows below a header of unknown names, and words that their cells have at least on average."""
_QUOTED_CELL = re.compile(r'"[^"]*"')
_QUOTED = re.compile(r'[^"]*(?:""[^"]*)*')
_NAME = re.compile(r"[^\W\d][\w-]{0,39}")
_NAMES = frozenset(
    (
        *("source", "src", "target", "tgt", "article", "headline", "highlights", "summary", "title", "document"),
        *("abstract", "text", "body", "content", "input", "output", "question", "answer", "context", "passage"),
        *("query", "response", "prompt", "completion", "instruction", "dialogue", "dialog", "reference", "references"),
        *("sentence", "label", "id", "index", "translation", "original", "simplified", "paraphrase", "story"),
    )
)
"""Names of columns that no text consists of."""


NAMING = "--source and --target, or source= and target=, name those to take"


class Row(NamedTuple):
    """A row: the number of its first line, and its cells."""

    number: int
    cells: list[str]


def is_table(path: Path) -> bool:
    """Return whether a file is a table, judging by its name."""
    return plain_name(path).endswith(tuple(DELIMITERS))


def read_rows(path: Path, malformed: Malformed) -> Iterator[Row]:
    """Yield the rows of a table; those that are malformed are left out.

    Raises:
        UserError: if the file cannot be read.
    """
    lines = ((number, line) for number, line in numbered_lines(path, malformed) if line is not None)
    begin = list(islice(lines, _LOOKED_AT))
    delimiter = _delimiter(path, [line for _, line in begin])
    reader = _Reader(chain(begin, lines), delimiter)
    while (taken := reader.take()) is not None:
        number, line = taken
        with malformed.record(path, number):
            yield Row(number, reader.cells(line))


def _delimiter(path: Path, lines: Sequence[str]) -> str:
    """Return the delimiter of a table: of those in its first line, the one that most lines have as often as that line.

    Raises:
        UserError: two are in all of several lines.
    """
    known = DELIMITERS[Path(plain_name(path)).suffix]
    plain = [_QUOTED_CELL.sub("", line) for line in lines]
    counts = {each: [line.count(each) for line in plain] for each in known if plain and each in plain[0]}
    fitting = {each: found.count(found[0]) for each, found in counts.items()}
    most = max(fitting.values(), default=0)
    best = [each for each in known if fitting.get(each) == most]
    if len(best) > 1 and len(lines) == most >= LEAST_ROWS:
        raise UserError(f"{path}: cells may be between {' or '.join(map(repr, best))}: put cells in quotation marks")
    return best[0] if best else known[0]


class _Reader:
    """Reads rows from numbered lines; lines that turn out not to belong to a row are read again."""

    def __init__(self, lines: Iterator[tuple[int, str]], delimiter: str) -> None:
        self._lines, self._delimiter = lines, delimiter
        self._again: deque[tuple[int, str]] = deque()

    def take(self) -> tuple[int, str] | None:
        """Return the next line; None at the end."""
        return self._again.popleft() if self._again else next(self._lines, None)

    def cells(self, line: str) -> list[str]:
        """Return the cells of the row that begins with a line.

        Raises:
            MalformedRecordError: its quotation marks are wrong.
        """
        if '"' not in line:
            return line.split(self._delimiter)
        further: list[tuple[int, str]] = []
        try:
            row = _Quoting(self._delimiter)
            row.read(line)
            while row.opened is not None:
                taken = self.take() if len(further) < MOST_LINES else None
                if taken is None or (self._delimiter == TAB and any(TAB in part for part in row.opened)):
                    further += [taken] if taken else []
                    raise MalformedRecordError("has a quotation mark that opens a cell, and none that closes it")
                further.append(taken)
                row.read(taken[1])
        except MalformedRecordError:
            self._again.extendleft(reversed(further))
            if self._delimiter == TAB:
                return line.split(TAB)
            raise
        if self._delimiter == TAB and not row.must_be_quoted():
            return line.split(TAB)
        return row.cells


class _Quoting:
    """The cells of a row with quotation marks."""

    def __init__(self, delimiter: str) -> None:
        self.delimiter = delimiter
        self.cells: list[str] = []
        self.opened: list[str] | None = None
        """The lines of a quoted cell that is not closed yet."""
        self._quoted: list[str] = []

    def read(self, line: str) -> None:
        """Read a line of the row.

        Raises:
            MalformedRecordError: text follows on a quoted cell.
        """
        place = 0
        while True:
            if self.opened is None and line.startswith('"', place):
                self.opened, place = [], place + 1
            if self.opened is None:
                end = line.find(self.delimiter, place)
                end = len(line) if end < 0 else end
                self.cells.append(line[place:end])
            else:
                part = _QUOTED.match(line, place)
                assert part is not None  # it matches nothing, too
                self.opened.append(part[0])
                end = part.end()
                if end == len(line):
                    return
                end += 1
                self._close()
            if end == len(line):
                return
            if line[end] != self.delimiter:
                raise MalformedRecordError("has text after the quotation mark that closes a cell")
            place = end + 1

    def _close(self) -> None:
        """End a quoted cell."""
        assert self.opened is not None
        text = "\n".join(self.opened)
        self._quoted.append(text)
        self.cells.append(text.replace('""', '"'))
        self.opened = None

    def must_be_quoted(self) -> bool:
        """Return whether a writer that quotes where it must wrote this row, or one that quotes all cells."""
        needs = [any(mark in text for mark in ('"', "\n", self.delimiter)) for text in self._quoted]
        return all(needs) or len(needs) == len(self.cells)


class Columns(NamedTuple):
    """The places of the columns of source and target, and whether the first row names them."""

    source: tuple[int, ...]
    target: int
    has_header: bool


def find_columns(path: Path, rows: Sequence[Row], source: Sequence[str], target: str, *, is_usual: bool) -> Columns:
    """Return which columns of a table are source and target.

    Args:
        path: the file.
        rows: its first rows.
        source: names of the columns of the source.
        target: name of the column of the target.
        is_usual: whether these names are the default, which a table without a header need not have.

    Raises:
        UserError: the first row names columns, but not those.
    """
    by_place = Columns((0,), 1, has_header=False)
    names = [cell.strip() for cell in rows[0].cells]
    columns = [*source, target]
    if set(columns).issubset(names):
        if repeated := [name for name in columns if names.count(name) > 1]:
            raise UserError(f"{path}:{rows[0].number}: has several columns {', '.join(repeated)}")
        return Columns(tuple(map(names.index, source)), names.index(target), has_header=True)
    has_header = not _folded(columns).isdisjoint(_folded(names)) or _is_header(rows)
    if not has_header and (is_usual or (len(source) == 1 and len(names) == 2)):
        return by_place
    named = [place for place, name in enumerate(names) if name]  # pandas writes an index without a name
    if has_header and len(named) == 2 and is_usual and set(columns).isdisjoint(names):
        return Columns((named[0],), named[1], has_header=True)
    found = ", ".join(f"{name:.30}" for name in names)
    if "\r" in found:
        raise UserError(f"{path}:{rows[0].number}: holds carriage returns: lines must end in line feeds")
    raise UserError(
        f"{path}:{rows[0].number}: must name the columns {', '.join(columns)}, but has {found:.200} ({NAMING})"
    )


def _folded(names: Sequence[str]) -> set[str]:
    return {name.casefold() for name in names}


def _is_header(rows: Sequence[Row]) -> bool:
    """Return whether the first row has names: known ones, or single words above rows of several words.

    One of these words is a known name, or all are in lower case.
    """
    first = [cell.strip() for cell in rows[0].cells if cell.strip()]
    if len(first) < 2 or len(set(first)) < len(first):
        return False
    if all(_NAMES.issuperset(name.lower().split()) for name in first):
        return True
    if not all(map(_NAME.fullmatch, first)):
        return False
    words = [sum(len(cell.split()) for cell in row.cells) for row in rows[1:]]
    is_known = not _NAMES.isdisjoint(name.lower() for name in first)
    is_lower = all(name == name.lower() for name in first)
    return (is_known or is_lower) and len(words) >= LEAST_ROWS and min(words) >= WORDS_OF_A_CELL * len(first)


def read_table(
    path: Path, source: Sequence[str], target: str, malformed: Malformed, *, is_usual: bool
) -> Iterator[tuple[int, tuple[str, ...], str]]:
    """Yield the number of the line, the cells of the source and that of the target of each row.

    Args:
        path: the file.
        source: names of the columns of the source.
        target: name of the column of the target.
        malformed: collects malformed rows, which are left out.
        is_usual: see `find_columns`.

    Raises:
        UserError: if the file cannot be read, or lacks the columns.
    """
    rows = read_rows(path, malformed)
    begin = list(islice(rows, _LOOKED_AT))
    if not begin:
        return
    columns = find_columns(path, begin, source, target, is_usual=is_usual)
    width = 2
    if columns.has_header:
        names = begin.pop(0).cells
        width = len(names)
        sources = ", ".join(names[place].strip() for place in columns.source)
        aim = names[columns.target].strip()
        malformed.note(f"{path}: the first row is a header: the source is {sources}, the target {aim}")
    for number, cells in chain(begin, rows):
        with malformed.record(path, number):
            if len(cells) != width:
                raise MalformedRecordError(_wrong_width(cells, width))
            yield number, tuple(cells[place] for place in columns.source), cells[columns.target]


def _wrong_width(cells: Sequence[str], width: int) -> str:
    needed = "two columns, source and target," if width == 2 else f"{width} columns, as the header,"
    if any("\r" in cell for cell in cells):
        return f"must have {needed} but holds carriage returns: lines must end in line feeds"
    found = ", ".join(f"{cell!r:.30}" for cell in cells[:5])
    return f"must have {needed} but has {len(cells)}" + (f": {found}" if len(cells) > 1 else "")
