"""Warn if CPU threads wait for cores, or use fewer threads with ``--share-cores``.

A matrix product ends when its slowest thread does. The others wait in a loop (GNU's OpenMP: 300,000 rounds), which is
fast while each thread has its own core. If other processes need cores, the loops occupy those that the slowest thread
needs.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fairseq.trainer import Trainer

from s2sft_fairseq.runtime import Function, wrap

logger = logging.getLogger(__name__)

WORTH_A_WARNING = 0.2
"""Share of the time that threads may wait for a core without a warning."""
INTERVAL = 20.0
"""Seconds between two checks."""
BUSY, FREE = 0.25, 0.75
"""Numbers of cores for ``--share-cores``: use one thread less if the threads waited for more than `BUSY`, and one more,
up to the number at the start, if more than `FREE` were idle."""


def install() -> None:
    """Patch the training step of `Trainer` in fairseq/trainer.py to watch the threads."""
    contention = Contention(waited_seconds, idle_seconds, time.monotonic)

    def watch(step: Function, trainer: Trainer, *args: Any, **options: Any) -> Any:
        result = step(trainer, *args, **options)
        if not trainer.cuda:
            contention.after_step(adapts=bool(getattr(trainer.cfg.model, "share_cores", False)))
        return result

    wrap(Trainer, "train_step", watch)


class Contention:
    """Watches how long threads wait for a core. It warns once, or adapts the number of threads to the free cores."""

    def __init__(self, waited: Callable[[], float], idle: Callable[[], float], clock: Callable[[], float]) -> None:
        """Store the functions that return times in seconds.

        Args:
            waited: returns how long all threads have waited for a core, added up.
            idle: returns how long the cores of the machine have been idle, added up.
            clock: returns the current time.
        """
        self._now = lambda: (clock(), waited(), idle())
        self._clock = clock
        self._last: tuple[float, float, float] | None = None
        self._has_warned = False
        self._most = torch.get_num_threads()

    def after_step(self, *, adapts: bool = False) -> None:
        """Once per interval, check the times since the last check.

        Args:
            adapts: change the number of threads instead of warning.
        """
        if self._last is not None and self._clock() - self._last[0] < INTERVAL:
            return
        now = self._now()
        if self._last is None:
            self._most = torch.get_num_threads()
        else:
            seconds, waited, idle = (after - before for after, before in zip(now, self._last, strict=True))
            if adapts:
                self._adapt(waited / seconds, idle / seconds)
            elif not self._has_warned:
                self._warn(seconds, waited)
        self._last = now

    def _adapt(self, waited: float, idle: float) -> None:
        """Change the number of threads; both arguments are mean numbers of cores."""
        threads = torch.get_num_threads()
        if waited > BUSY and threads > 1:
            torch.set_num_threads(threads - 1)
            logger.info(f"--share-cores: {threads - 1} of {self._most} threads, for they waited for {waited:.1f} cores")
        elif idle > FREE and threads < self._most:
            torch.set_num_threads(threads + 1)
            logger.info(f"--share-cores: {threads + 1} of {self._most} threads, for {idle:.1f} cores were idle")

    def _warn(self, seconds: float, waited: float) -> None:
        threads = torch.get_num_threads()
        share = waited / seconds / threads
        if share > WORTH_A_WARNING:
            self._has_warned = True
            of = "1 thread" if threads == 1 else f"{threads} threads"
            advice = ", or give --share-cores, which trains with fewer threads meanwhile" if threads > 1 else ""
            logger.warning(
                f"{of} waited {share:.0%} of the last {seconds:.0f} s for one of {os.cpu_count()} cores: other "
                f"processes need them too (load {os.getloadavg()[0]:.1f}). Training is slower for it: end them{advice}"
            )


def waited_seconds() -> float:
    """Return how long the threads of this process waited for a core, added up; 0 if the system does not provide it.

    proc(5): the second number of ``schedstat``, in nanoseconds.
    """
    waited = 0
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended
            waited += int(thread.read_text(encoding="ascii").split()[1])
    return waited / 1e9


def idle_seconds() -> float:
    """Return how long the cores of the machine were idle, added up; 0 if the system does not provide it.

    proc(5): the fourth number of the first line of ``stat``, in ticks.
    """
    with contextlib.suppress(OSError):
        first = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0]
        return int(first.split()[4]) / os.sysconf("SC_CLK_TCK")
    return 0.0
