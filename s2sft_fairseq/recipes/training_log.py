"""The log of ``s2sft train --log-format json``: show the progress of a training, and plot its losses."""

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from s2sft_fairseq.errors import UserError

_END = "\0\n"
"""Marks the end of a training's output, because processes that it started may keep the pipe open."""


def parse(line: str) -> tuple[str, dict[str, Any]] | None:
    """Return ``training`` or ``held out`` and the numbers of a line; None for a line without numbers.

    On standard output the numbers follow the time and the logger's name; a ``--log-file`` only has the numbers.
    """
    start = line.find('{"')
    try:
        record = json.loads(line[start:]) if start >= 0 else {}
    except ValueError:
        return None
    if "valid_loss" in record:
        return "held out", {name.removeprefix("valid_"): value for name, value in record.items()}
    return ("training", record) if "num_updates" in record else None


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


def plot(log: Path, output: Path) -> None:
    """Plot the losses of training and held-out data over the updates; the suffix of `output` determines the format.

    Raises:
        UserError: the log lacks the losses of training or of held-out data.
    """
    from matplotlib.figure import Figure

    curves: dict[str, list[tuple[int, float]]] = {"training": [], "held out": []}
    for line in log.read_text(encoding="utf-8").splitlines():
        if parsed := parse(line):
            kind, record = parsed
            curves[kind].append((int(record["num_updates"]), float(record["loss"])))
    if empty := [name for name, points in curves.items() if not points]:
        raise UserError(f"{log} must hold the losses of training and held-out data, but has none: {empty}")
    figure = Figure(figsize=(7, 4.5))
    axes = figure.subplots()
    for name, points in curves.items():
        axes.plot(*zip(*sorted(points), strict=True), label=name, marker="o" if name == "held out" else None)
    axes.set(xlabel="updates", ylabel="loss (bits a token)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(output, dpi=120)
