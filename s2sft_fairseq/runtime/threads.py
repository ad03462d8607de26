"""How threads of the CPU wait for each other, and a warning where they wait for a core.

A matrix product ends when its slowest thread does. The others wait in a loop (GNU's OpenMP: 300,000 rounds), which is
fast while each thread has a core of its own. Where another process needs that core, the loop keeps it from the thread
that all wait for.
"""

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fairseq.tasks.fairseq_task import FairseqTask

from s2sft_fairseq.runtime import Function, wrap

logger = logging.getLogger(__name__)

WORTH_A_WARNING = 0.2
"""Share of the time that the threads may wait for a core."""
INTERVAL = 20.0
"""Seconds between two looks."""


def install() -> None:
    """Patch the training step of `FairseqTask` in fairseq/tasks/fairseq_task.py to watch the threads."""
    contention = Contention(waited_seconds, time.monotonic)

    def watch(step: Function, task: FairseqTask, sample: Any, model: Any, *args: Any, **options: Any) -> Any:
        result = step(task, sample, model, *args, **options)
        if next(model.parameters()).device.type == "cpu":
            contention.after_step()
        return result

    wrap(FairseqTask, "train_step", watch)


class Contention:
    """Watches how long the threads wait for a core, and warns once."""

    def __init__(self, waited: Callable[[], float], clock: Callable[[], float]) -> None:
        """Take the functions that tell how long all threads have waited, in seconds, and what time it is."""
        self._waited, self._clock = waited, clock
        self._last: tuple[float, float] | None = None
        self._has_warned = False

    def after_step(self) -> None:
        """Look, once an interval, and warn where the threads waited too long since the last look."""
        now = self._clock()
        if self._has_warned or (self._last is not None and now - self._last[0] < INTERVAL):
            return
        waited = self._waited()
        if self._last is not None:
            self._look(now - self._last[0], waited - self._last[1])
        self._last = now, waited

    def _look(self, seconds: float, waited: float) -> None:
        threads = torch.get_num_threads()
        share = waited / seconds / threads
        if share > WORTH_A_WARNING:
            self._has_warned = True
            of = "1 thread" if threads == 1 else f"{threads} threads"
            advice = ", or train with fewer threads (OMP_NUM_THREADS)" if threads > 1 else ""
            logger.warning(
                f"{of} waited {share:.0%} of the last {seconds:.0f} s for one of {os.cpu_count()} cores: other "
                f"processes need them too (load {os.getloadavg()[0]:.1f}). Training is slower for it: end them{advice}"
            )


def waited_seconds() -> float:
    """Return how long the threads of this process were ready but had no core, added up; 0 where Linux does not say.

    proc(5): the second number of ``schedstat``, in nanoseconds.
    """
    waited = 0
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):  # the thread has ended
            waited += int(thread.read_text(encoding="ascii").split()[1])
    return waited / 1e9
