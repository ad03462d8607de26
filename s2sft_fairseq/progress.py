"""The progress of commands on a terminal: a bar for work that can be counted, and a line for work that cannot.

A bar appears after `DELAY` seconds. Bars and lines are removed when the work ends. Nothing is shown if the error stream
is not a terminal, or if no command runs, as in Python. ``TQDM_DISABLE=1`` in the environment turns all of it off.
"""

import io
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

logger = logging.getLogger(__name__)

DELAY = 2.0
"""Seconds after which a bar appears."""
_FORMAT = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}, {rate_noinv_fmt}]"
_SECONDS_BETWEEN_LINES = 60

_stream: TextIO | None = None
"""The error stream of the command that runs; None: no command runs."""


class _Bar(tqdm):
    monitor_interval = 0  # no thread, as commands fork


@contextmanager
def of_command() -> Iterator[None]:
    """Show progress within this block, on the error stream of the outermost such block.

    So a command that another command runs shows its progress on the terminal, even if its own errors go to a file.
    """
    global _stream
    before, _stream = _stream, _stream or sys.stderr
    try:
        yield
    finally:
        _stream = before
        if before is None:  # tracebacks keep iterators, and so bars, alive
            for each in [each for each in tqdm._instances if isinstance(each, _Bar)]:
                each.close()


def bar(items: Iterable[Any] | None = None, what: str = "", unit: str = "", **options: Any) -> tqdm:
    """Return an iterator over items, or a context manager to `update`, which shows a bar.

    Args:
        items: the items to count; None: the caller counts.
        what: the text before the bar.
        unit: what is counted, with a space before it.
        options: options of tqdm, such as ``total`` where `items` have no length.
    """
    return _bar(_stream, items, desc=what, unit=unit, **options)


def bar_of_bytes(what: str, paths: Sequence[Path]) -> tqdm:
    """Return a bar over the bytes of files. The number of unpacked bytes, and of those of pipes, is not known."""
    is_known = all(path.is_file() and path.suffix != ".gz" for path in paths)
    size = sum(path.stat().st_size for path in paths) if is_known else None
    return bar(what=what, unit="B", unit_scale=True, total=size)


def step(what: str) -> tqdm:
    """Return a context manager that shows a line while its block runs."""
    return _bar(_stream, desc=what, delay=0, bar_format="{desc} ...")


def _bar(stream: TextIO | None, items: Iterable[Any] | None = None, **options: Any) -> tqdm:
    if stream is None or not stream.isatty():
        options["disable"] = True  # otherwise TQDM_DISABLE decides
    settings = {"delay": DELAY, "miniters": 1, "dynamic_ncols": True, "bar_format": _FORMAT, **options}
    return _Bar(items, file=stream, leave=False, **settings)


class _LoggedProgress(_Bar):
    """Logs the progress line in place of drawing it."""

    def display(self, *_: Any, **__: Any) -> None:
        if self.initial < self.n < self.total:
            logger.info(str(self))


def sentence_progress(total: int, done: int, *, bar: bool = True) -> tqdm:
    """Return the progress over `total` sentences, with their rate and the time left.

    Args:
        total: number of all sentences.
        done: number of sentences of an earlier run; they do not count in the rate.
        bar: draw a bar if the error stream is a terminal; otherwise progress is logged.
    """
    counts: dict[str, Any] = {"total": total, "initial": done, "unit": " sentences", "smoothing": 0}
    stream = _stream or sys.stderr
    if bar and stream.isatty():
        return _bar(stream, **counts)
    line = "{n_fmt} of {total_fmt} sentences, {rate_noinv_fmt}, {remaining} left"
    seconds = _SECONDS_BETWEEN_LINES
    return _LoggedProgress(**counts, mininterval=seconds, miniters=1, file=io.StringIO(), bar_format=line)
