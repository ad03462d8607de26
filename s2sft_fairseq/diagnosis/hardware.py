"""Facts about the hardware of a machine: GPUs, CPU and its threads, memory and disks."""

import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from s2sft_fairseq import plugin  # noqa: F401  (patches fairseq, and therefore comes first)

# isort: split
from s2sft_fairseq.diagnosis.report import Report
from s2sft_fairseq.inference.memory import GIB, control_groups, free_memory
from s2sft_fairseq.modules import cpu_linear
from s2sft_fairseq.modules.flash_trial import flash_failure
from s2sft_fairseq.modules.matmul import cache_path, processor
from s2sft_fairseq.runtime import gpu
from s2sft_fairseq.runtime.threads import FREE, idle_seconds

INSTRUCTIONS = {
    "AVX2": ("avx2",),
    "AVX-512": ("avx512f",),
    "VNNI": ("avx512_vnni", "avx_vnni"),
    "AMX": ("amx_tile",),
}
"""Instructions of x86, each with its flags in ``/proc/cpuinfo``, of which one is enough."""
ALLOCATORS = ("tcmalloc", "jemalloc", "mimalloc")
LEAST_DISK = GIB
"""Free bytes: a checkpoint of a base model takes about as much."""
HEAD_DIM = 64
"""Width of the heads that flash attention is tried with."""
_SAMPLE = 0.5
"""Seconds in which idle cores are counted."""


def examine_hardware(report: Report, root: Path = Path("/")) -> None:
    """Add the hardware of this machine to a report.

    Args:
        report: to add to.
        root: of the file system, for tests.
    """
    report.facts["GPU"] = dict(_gpus(report))
    report.facts["CPU"] = dict(_cpu(report, root))
    report.facts["memory and disks"] = dict(_space(report, root))


def _gpus(report: Report) -> Iterator[tuple[str, object]]:
    if not torch.cuda.is_available():
        yield "found", False
        if Path("/dev/nvidia0").exists() or shutil.which("nvidia-smi"):
            remedy = "install a build with CUDA" if torch.version.cuda is None else "look at what nvidia-smi says"
            report.notes.append(f"there are signs of a GPU, but PyTorch {torch.__version__} finds none: {remedy}")
        return
    for index in range(torch.cuda.device_count()):
        with torch.cuda.device(index):
            device, facts = torch.device("cuda", index), torch.cuda.get_device_properties(index)
            in_bf16 = gpu.multiplies_bf16()
            dtype = torch.bfloat16 if in_bf16 else torch.float16
            failure = flash_failure(device, head_dim=HEAD_DIM, window=0, dtype=dtype)
            yield f"cuda:{index}", facts.name
            yield "compute capability", f"{facts.major}.{facts.minor}"
            yield "GPU memory", f"{_gib(facts.total_memory)}, {_gib(free_memory(device))} free"
            yield "bfloat16", in_bf16
            yield "flash kernels", failure is None
        if failure:
            report.notes.append(f"cuda:{index}: attention is padded, for flash kernels lack {failure}")


def _cpu(report: Report, root: Path) -> Iterator[tuple[str, object]]:
    name, flags = processor()
    cores, threads = usable_cores(root), torch.get_num_threads()
    yield "processor", name
    yield "cores of the machine", os.cpu_count()
    yield "cores that the process may use", cores
    yield "threads of PyTorch", threads
    yield "instructions", [each for each, any_of in INSTRUCTIONS.items() if flags.intersection(any_of)]
    yield "bfloat16 products", cpu_linear.multiplies_bf16()
    yield "load of the last minute", round(os.getloadavg()[0], 1)
    yield "allocator", allocator(root)
    if threads > cores:
        report.notes.append(
            f"PyTorch has {threads} threads for {cores:g} cores, so that they wait for each other: set OMP_NUM_THREADS="
            f"{max(1, int(cores))}"
        )
    if (idle := _idle_cores()) is not None:
        yield "idle cores", round(idle, 1)
        if idle + FREE < min(threads, cores):
            needed, advice = (
                ("1 thread", "") if threads == 1 else (f"{threads} threads", ", or train with --share-cores")
            )
            report.notes.append(
                f"{idle:.1f} cores are idle, but PyTorch has {needed}: other processes use the cores; end them{advice}"
            )


def usable_cores(root: Path = Path("/")) -> float:
    """Return the cores that this process may use, by its affinity and by the limits of its control groups."""
    cores: float = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder, _ in control_groups(root):
        quota = folder / "cpu.max"
        if quota.is_file() and (found := re.fullmatch(r"(\d+) (\d+)\s*", quota.read_text(encoding="ascii"))):
            cores = min(cores, int(found[1]) / int(found[2]))
    return cores


def allocator(root: Path = Path("/")) -> str:
    """Return the name of the allocator that this process has loaded, glibc's if it is no other."""
    maps = root / "proc/self/maps"
    loaded = maps.read_text(encoding="utf-8", errors="replace") if maps.is_file() else ""
    return next((name for name in ALLOCATORS if f"lib{name}" in loaded), "the C library's")


def _idle_cores(idle: Callable[[], float] = idle_seconds) -> float | None:
    """Return how many cores are idle, while this process sleeps; None where Linux does not say."""
    start, before = time.monotonic(), idle()
    time.sleep(_SAMPLE)
    seconds, after = time.monotonic() - start, idle()
    return (after - before) / seconds if after else None


def _space(report: Report, root: Path) -> Iterator[tuple[str, object]]:
    yield "free memory", _gib(free_memory(torch.device("cpu"), root))
    folders = {"this folder": Path.cwd(), "cache": cache_path().parent, "temporary files": Path(tempfile.gettempdir())}
    for name, folder in folders.items():
        free = shutil.disk_usage(next(each for each in (folder, *folder.parents) if each.is_dir())).free
        yield f"free disk, {name}", _gib(free)
        if free < LEAST_DISK:
            report.problems.append(
                f"{folder} has {free:,} bytes free, fewer than a checkpoint takes: delete files there"
            )


def _gib(count: int) -> str:
    return f"{count / GIB:,.1f} GiB"
