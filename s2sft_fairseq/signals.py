"""Signals with which schedulers and people ask a command to end, and the status that it then ends with."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STATUS = os.EX_TEMPFAIL
"""The exit status of a command that was asked to end and has kept what was done (75): schedulers may queue it again."""
INTERRUPTED = 130
"""That of one that Ctrl-C has ended, as shells have it."""
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@contextmanager
def handled(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Let a function handle the signals within the block; in other threads than the main one, do nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = [signal.signal(number, handler) for number in SIGNALS]
    try:
        yield
    finally:
        for number, previous in zip(SIGNALS, before, strict=True):
            signal.signal(number, previous)


def end(number: int, frame: FrameType | None) -> None:
    """Handle a signal: end at once, by an exception that lets what was done be kept."""
    raise SystemExit(STATUS) if number != signal.SIGINT else KeyboardInterrupt
