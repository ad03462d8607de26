"""What the process of a cell says of itself: its memory, and what its figures depend on beyond the cell."""

import os
from importlib.metadata import version
from typing import Any

import torch


def memory(field: str) -> int:
    """Return what Linux says of this process's resident memory, in bytes: now (VmRSS) or at its peak (VmHWM)."""
    with open("/proc/self/status", encoding="ascii") as status:
        (line,) = (line for line in status if line.startswith(field + ":"))
    return 1024 * int(line.split()[1])


def facts() -> dict[str, Any]:
    """Return the versions, the threads, and the load of the machine as it is now."""
    return {
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "threads_used": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "load": os.getloadavg()[0],
    }
