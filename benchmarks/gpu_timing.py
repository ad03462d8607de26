"""What the parts of `gpu.py` measure with: fenced times, counted calls of the driver, and memory."""

import gc
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from process_facts import memory
from roofline import synchronize
from torch.profiler import ProfilerActivity, profile

Call = Callable[[], Any]
Record = dict[str, Any]

LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch")
COPIES = ("cudaMemcpy", "cudaMemset")
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize")
"""Calls of the driver, by how their names begin. A copy to or from pageable memory waits by itself, under its own name.
``cudaDeviceSynchronize`` is left out: the profiler and the fences call it."""


class Settings(NamedTuple):
    """What all parts are given."""

    device: str
    """``cuda`` or ``cpu``."""
    tiny: bool
    """Sizes that a CPU runs in seconds: to find mistakes before there is a GPU."""

    @property
    def least_seconds(self) -> float:
        """The least that a timed block of calls lasts."""
        return 0.0 if self.tiny else 0.25


def seconds_of(call: Call, settings: Settings, *, warm_up: int = 3, repeats: int = 5) -> list[float]:
    """Return the seconds of a call: one mean for each of several blocks of calls, fenced by waiting for the device.

    Args:
        call: what is timed. Within a block the host may run ahead of the device, as it does in real use.
        settings: device, and least duration of the blocks; if they are tiny, one block of one call must do.
        warm_up: calls before the first block, the last of which tells how many calls a block needs.
        repeats: number of the blocks.
    """
    device = torch.device(settings.device)

    def block(calls: int) -> float:
        synchronize(device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        synchronize(device)
        return (time.perf_counter() - start) / calls

    last = [block(1) for _ in range(1 if settings.tiny else warm_up)][-1]
    calls = max(1, math.ceil(settings.least_seconds / max(last, 1e-6)))
    return [block(calls) for _ in range(1 if settings.tiny else repeats)]


def tally(counts: Mapping[str, int]) -> Record:
    """Sum calls of the driver up.

    Args:
        counts: by name, as the profiler has them.

    Returns:
        ``launches`` (of kernels and graphs), ``graphs``, ``copies`` and ``waits``; None of each if the profiler saw no
        launch, as on a CPU, or where it may not look at the device.
    """

    def total(beginnings: tuple[str, ...]) -> int:
        return sum(count for name, count in counts.items() if name.startswith(beginnings))

    if not total(LAUNCHES):
        return dict.fromkeys(("launches", "graphs", "copies", "waits"))
    return {
        "launches": total(LAUNCHES),
        "graphs": total(("cudaGraphLaunch",)),
        "copies": total(COPIES),
        "waits": total(WAITS),
    }


def profiled(call: Call, device: str) -> dict[str, int]:
    """Run a call and return how often each operator and each function of the driver was called in it."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities, acc_events=True) as profiler:  # or 2.11 warns that it forgets other cycles
        call()
        synchronize(torch.device(device))
    return {event.key: event.count for event in profiler.key_averages()}


def peak_bytes(device: str) -> int:
    """Return the most memory that PyTorch took of a GPU since `release`; on a CPU that of the whole process so far."""
    # fairseq resets PyTorch's own count of the peak at every update; nothing is given back to the device meanwhile.
    return torch.cuda.memory_reserved() if device == "cuda" else memory("VmHWM")


def release(device: str) -> None:
    """Forget what a cell has left: compiled code, and memory that is not given back by itself."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def is_usable(device: str) -> bool:
    """Tell whether the device still works: after some errors nothing does in this process."""
    try:
        synchronize(torch.device(device))
    except RuntimeError:
        return False
    return True
