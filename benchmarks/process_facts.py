"""Memory of the process of a cell, and facts that its figures depend on beyond the cell."""

import os
from importlib.metadata import version
from typing import Any

import torch


def memory(field: str) -> int:
    """Return the resident memory of this process in bytes, from Linux: now (VmRSS) or its peak (VmHWM)."""
    with open("/proc/self/status", encoding="ascii") as status:
        (line,) = (line for line in status if line.startswith(field + ":"))
    return 1024 * int(line.split()[1])


def facts() -> dict[str, Any]:
    """Return versions, threads, CPU facts, and the current load of the machine."""
    return {
        "torch": torch.__version__,
        "transformers": version("transformers"),
        "threads_used": torch.get_num_threads(),
        "cpus": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "load": os.getloadavg()[0],
    }
