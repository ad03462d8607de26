"""The log of ``s2sft train --log-format json``: progress while it is written, and its losses as a plot."""

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
"""Ends the output of a training; processes that it started may keep the pipe open."""


def parse(line: str) -> tuple[str, dict[str, Any]] | None:
    """Return ``training`` or ``held out``, and the numbers, of a line that has any.

    In the output they stand behind the time and the logger's name, in a ``--log-file`` alone.
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
    """Lines of a training's output made short: updates, losses and the time that is left; warnings and errors stay."""

    def __init__(self, updates: int | None) -> None:
        """Take the number of all updates, where it is known."""
        self._total = updates or 0
        # The first record starts the clock: before it there is set-up, or what an earlier run has done.
        self._first, self._start = -1, 0.0

    def __call__(self, line: str) -> str:
        """Return what is to be shown of a line, or nothing."""
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
    """Print ``short(line)`` of each line that is printed, by this process or by those of a training on several GPUs."""
    sys.stdout.flush()
    reading, writing = os.pipe()
    printed = os.dup(1)
    # Tests and notebooks have a stream of their own in the place of the process's.
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
    """Draw the losses of training and of held-out data over the updates; the name of `output` tells the format.

    Raises:
        UserError: if the log has no losses.
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
