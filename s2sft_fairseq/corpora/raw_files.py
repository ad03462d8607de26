"""Finding the files of a raw data set, and reading their lines."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

from s2sft_fairseq.corpora.malformed import Malformed
from s2sft_fairseq.data.text_files import READING_ERRORS, open_bytes, reading_problem
from s2sft_fairseq.errors import UserError


def find(folder: Path, name: str) -> Path | None:
    """The file of this name, or its ``.gz``; None where there is neither."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def require(folder: Path, *names: str) -> list[Path]:
    """The files of these names, plain or ``.gz``.

    Raises:
        UserError: naming all that are not there.
    """
    found = {name: find(folder, name) for name in names}
    if missing := [name for name, path in found.items() if path is None]:
        raise UserError(f"--raw {folder} must hold {', '.join(names)} (or .gz), but lacks {', '.join(missing)}")
    return [path for path in found.values() if path is not None]


def read_bytes(path: Path) -> bytes:
    """The whole of a file, decompressed if its name ends in ``.gz``.

    Raises:
        UserError: if it cannot be read.
    """
    try:
        with open_bytes(path) as file:
            return file.read()
    except READING_ERRORS as error:
        raise UserError(reading_problem(path, error)) from None


def numbered_lines(path: Path, malformed: Malformed) -> Iterator[tuple[int, str | None]]:
    """Yield the lines of a file with their numbers, from 1, without their ends; None is a line that is no UTF-8.

    Raises:
        UserError: if the file cannot be read.
    """
    try:
        with open_bytes(path) as file:
            for number, line in enumerate(file, 1):
                try:
                    yield number, line.decode("utf-8").rstrip("\r\n")
                except UnicodeDecodeError:
                    malformed.add(path, number, "is not valid UTF-8")
                    yield number, None
    except READING_ERRORS as error:
        raise UserError(reading_problem(path, error)) from None


def aligned_lines(paths: Sequence[Path], malformed: Malformed) -> Iterator[tuple[int, list[str]]]:
    """Yield the lines of line-aligned files side by side; those of which one is no UTF-8 are left out.

    Raises:
        UserError: at the end, if the files have different numbers of lines, or when one cannot be read.
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
