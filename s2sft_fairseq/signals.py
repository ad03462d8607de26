"""The signals with which schedulers and users ask a command to end, and its exit status."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

STATUS = os.EX_TEMPFAIL
"""The exit status (75) of a command that a signal ended and that can be resumed: schedulers may queue it again."""
INTERRUPTED = 130
"""The exit status of a command that Ctrl-C ended, as in shells."""
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


@contextmanager
def handled(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Let a function handle the signals within the block. Outside of the main thread, do nothing."""
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
    """Handle a signal: end at once by an exception, so that cleanup code runs."""
    raise SystemExit(STATUS) if number != signal.SIGINT else KeyboardInterrupt
