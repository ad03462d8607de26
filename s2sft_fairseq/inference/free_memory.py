"""How much memory a device can still give."""

from collections.abc import Iterator
from pathlib import Path

import torch

GIB = 2**30
UNKNOWN = 4 * GIB  # where the system does not say, such as on macOS

# For each version of Linux's control groups: where its files are, the limit, what is used, and the statistics that say
# how much of that are files the kernel would drop first.
_CONTROL_GROUPS = {
    2: ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    1: ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


def free_memory(device: torch.device, root: Path = Path("/")) -> int:
    """Return the bytes that a new allocation may take.

    On a GPU: what the driver has left, and what PyTorch keeps cached. On the CPU: what Linux calls available, or what
    the limits of the control groups of this process (containers, batch systems) leave of it. `UNKNOWN` elsewhere.

    Args:
        device: where.
        root: of the file system, for tests.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    available = _fields(root / "proc/meminfo").get("MemAvailable:") if device.type == "cpu" else None
    if available is None:
        return UNKNOWN
    return max(0, min([available * 1024, *_left_by_control_groups(root)]))


def _left_by_control_groups(root: Path) -> Iterator[int]:
    """Yield what each limit on this process leaves it."""
    for folder, version in _control_groups(root):
        _, limit, used, inactive = _CONTROL_GROUPS[version]
        limit, used = _number(folder / limit), _number(folder / used)
        if limit is not None and used is not None:
            yield limit - used + _fields(folder / "memory.stat").get(inactive, 0)


def _control_groups(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield the folders of the control groups of this process and of their parents, whose limits hold as well.

    A container may see its own group as the root, while the path names it as the host does: folders that are not there
    have no limits to read.
    """
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            version = 1 if controllers else 2
            group = Path(path.lstrip("/"))
            for part in (group, *group.parents) if group.parts else (group,):
                yield root / _CONTROL_GROUPS[version][0] / part, version


def _fields(file: Path) -> dict[str, int]:
    """Read lines of a name, a number and perhaps a unit."""
    return {words[0]: int(words[1]) for line in _lines(file) if len(words := line.split()) > 1}


def _number(file: Path) -> int | None:
    """Read a file of one number; None where there is no file, or no limit ("max")."""
    text = "".join(_lines(file))
    return int(text) if text.isdigit() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
