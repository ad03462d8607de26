"""Measurements for the parts of `gpu.py`: synchronized times, counts of driver calls, and memory."""

import gc
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from process_facts import memory
from roofline import synchronize
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

Call = Callable[[], Any]
Record = dict[str, Any]

LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch")
COPIES = ("cudaMemcpy", "cudaMemset")
WAITS = ("cudaStreamSynchronize", "cudaEventSynchronize")
"""Beginnings of the names of driver calls. A copy to or from pageable memory also waits, but only counts as a copy.
``cudaDeviceSynchronize`` is left out: the profiler and the synchronization of the timing call it."""


TALLIED = ("launches", "graphs", "copies", "waits", "device_ms")
"""Keys of `tally`."""


class Settings(NamedTuple):
    """The settings of all parts."""

    device: str
    """``cuda`` or ``cpu``."""
    tiny: bool
    """Use sizes that a CPU runs in seconds, to find mistakes without a GPU."""

    @property
    def least_seconds(self) -> float:
        """The shortest duration of a timed block of calls."""
        return 0.0 if self.tiny else 0.25


def seconds_of(call: Call, settings: Settings, *, warm_up: int = 3, repeats: int = 5) -> list[float]:
    """Return the mean seconds of a call for each of several blocks of calls, each between two synchronizations.

    Args:
        call: the call to time. Within a block the host may run ahead of the device, as in real use.
        settings: device, and shortest duration of a block. Tiny settings time one call, after one warm-up call.
        warm_up: calls before the first block; the last of them determines how many calls a block needs.
        repeats: number of blocks.
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


class Profile(NamedTuple):
    """What the profiler saw in a call."""

    counts: Mapping[str, int]
    """How often each operator and each function of the driver was called, by name."""
    device_seconds: float
    """The sum of the times of all kernels and copies on the device."""


def tally(seen: Profile) -> Record:
    """Sum the calls of the driver by kind.

    Returns:
        ``launches`` (of kernels and graphs), ``graphs``, ``copies`` and ``waits``, and ``device_ms``, the time in which
        the device was busy. A call that takes much longer waits for the host, which launches too slowly. Each is None
        if the profiler saw no launch: on a CPU, or if it has no access to the device.
    """
    counts = seen.counts

    def total(beginnings: tuple[str, ...]) -> int:
        return sum(count for name, count in counts.items() if name.startswith(beginnings))

    if not total(LAUNCHES):
        return dict.fromkeys(TALLIED)
    return {
        "launches": total(LAUNCHES),
        "graphs": total(("cudaGraphLaunch",)),
        "copies": total(COPIES),
        "waits": total(WAITS),
        "device_ms": 1000 * seen.device_seconds,
    }


def profiled(call: Call, device: str) -> Profile:
    """Run a call and return what the profiler saw."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with profile(activities=activities, acc_events=True) as profiler:  # else PyTorch 2.11 warns about other cycles
        call()
        synchronize(torch.device(device))
    events = profiler.key_averages()
    # An annotation, such as that of an optimizer's step, has the time of its kernels once more.
    on_device = [event for event in events if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
    return Profile(
        {event.key: event.count for event in events},
        sum(event.self_device_time_total for event in on_device) / 1e6,  # from microseconds
    )


def peak_bytes(device: str) -> int:
    """Return the GPU memory that PyTorch reserved since `release`; on a CPU the process's peak resident memory."""
    # fairseq resets PyTorch's peak at every update. Reserved memory is not returned to the device in between.
    return torch.cuda.memory_reserved() if device == "cuda" else memory("VmHWM")


def release(device: str) -> None:
    """Free what a cell has left: compiled code and cached memory."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def is_usable(device: str) -> bool:
    """Return whether the device still works; after some errors it is unusable for this process."""
    try:
        synchronize(torch.device(device))
    except RuntimeError:
        return False
    return True
