"""Show the progress of a training from its log, ``s2sft train --log-format json``."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from s2sft_fairseq.plots.training import parse

_END = "\0\n"
"""Marks the end of a training's output, because processes that it started may keep the pipe open."""


class Progress:
    """Shortens a training's output to updates, losses and the time that is left. It keeps warnings and errors."""

    def __init__(self, updates: int | None) -> None:
        """Store the number of all updates; None: unknown."""
        self._total = updates or 0
        # The clock starts at the first record, to leave out set-up and the updates of an earlier run.
        self._first, self._start = -1, 0.0

    def __call__(self, line: str) -> str:
        """Return the short form of a line, or "" to hide it."""
        if parsed := parse(line):
            kind, record = parsed
            done = int(record["num_updates"])
            if self._first < 0:
                self._first, self._start = done, time.monotonic()
            left = (time.monotonic() - self._start) / max(1, done - self._first) * (self._total - done)
            ahead = f", {left / 60:.1f} min left" if self._first < done < self._total and kind == "training" else ""
            of_all = f"/{self._total}" if self._total else ""
            return f"  update {done}{of_all}: {kind} loss {record['loss']}{ahead}\n"
        return f"  {line.rstrip()}\n" if "| WARNING |" in line or "| ERROR |" in line else ""


@contextlib.contextmanager
def shortened(short: Callable[[str], str]) -> Iterator[None]:
    """Print ``short(line)`` in place of each line of output, also of the processes of a training on several GPUs."""
    sys.stdout.flush()
    reading, writing = os.pipe()
    printed = os.dup(1)
    # Tests and notebooks replace the standard output of the process by a stream of their own.
    shown = os.fdopen(os.dup(1), "w", encoding="utf-8") if sys.stdout is sys.__stdout__ else sys.stdout

    def show() -> None:
        with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                if line == _END:
                    break
                shown.write(short(line))
                shown.flush()

    thread = threading.Thread(target=show)
    thread.start()
    os.dup2(writing, 1)
    try:
        with os.fdopen(writing, "w", encoding="utf-8", buffering=1) as output:
            try:
                with contextlib.redirect_stdout(output):
                    yield
            finally:
                output.write(f"\n{_END}")
    finally:
        os.dup2(printed, 1)
        os.close(printed)
        thread.join()
        if shown is not sys.stdout:
            shown.close()
