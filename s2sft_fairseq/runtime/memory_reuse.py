"""Memory that PyTorch frees on the CPU, kept by the process for what it needs next.

The C library gives every large block back to the kernel at once, and the next one comes page by page and full of zeros:
training spends up to a third of its time on that. Here glibc is told to keep what it has, but for blocks of 32 MiB and
more: these, such as the gradient of an embedding, would leave holes that the small ones after them fill up.

Batches differ in their sizes, and small blocks that stay (glibc and NumPy keep a few of each size for their own use)
come to lie between the large ones. Then what is free is in pieces, more and more of it is too short for the next batch,
and the process grows for hours. So the pages of free pieces are given back, once they are half as much as a step needs.
"""

import ctypes
import functools
import os
import platform
from collections.abc import Callable
from typing import Any

from fairseq.tasks.fairseq_task import FairseqTask

# Parameters of mallopt(3), and the variables with which a user sets them.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_")
# Bytes.
_NEVER, _GROWTH, _LARGE = (1 << 31) - 1, 64 << 20, 32 << 20
_SLACK = 1.5
"""Memory that steps may leave behind, as a multiple of what one step needs."""


class Holes:
    """Watches the memory of the process from step to step, and gives back what is free when it is too much."""

    def __init__(self, resident: Callable[[], int], give_back: Callable[[], Any]) -> None:
        """Take the functions that tell the resident memory, in bytes, and that give back what is free of it."""
        self._resident, self._give_back = resident, give_back
        self._least = self._needed = 0
        self._is_first = False

    def after_step(self) -> None:
        """Look at the memory, at the end of a step, when it holds nothing but what stays."""
        grown = self._resident() - self._least
        if self._is_first:  # since memory was given back: the step has touched what it needs, and nothing else
            self._needed = max(self._needed, grown)
            self._is_first = False
        if grown > _SLACK * self._needed:
            self._give_back()
            self._least, self._is_first = self._resident(), True


def apply() -> None:
    """Keep freed memory, unless the user has settings of their own or another allocator."""
    if platform.libc_ver()[0] != "glibc" or _has_settings_of_the_user():
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, _LARGE)
    libc.mallopt(_TRIM_THRESHOLD, _NEVER)
    libc.mallopt(_TOP_PAD, _GROWTH)
    holes = Holes(_resident_memory, functools.partial(libc.malloc_trim, 0))
    for step in ("train_step", "valid_step", "inference_step"):
        setattr(FairseqTask, step, _watched(getattr(FairseqTask, step), holes))


def _watched(step: Callable, holes: Holes) -> Callable:
    @functools.wraps(step)
    def run(*args: object, **kwargs: object) -> object:
        result = step(*args, **kwargs)
        holes.after_step()
        return result

    return run


def _resident_memory() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _has_settings_of_the_user() -> bool:
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "LD_PRELOAD" in os.environ or "glibc.malloc" in tunables or any(name in os.environ for name in _OF_THE_USER)
