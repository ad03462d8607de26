"""Freed memory is used again without the kernel: counted in page faults of a process of its own. What lies between
blocks that stay is given back."""

import os
import platform
import subprocess
import sys

import pytest

from s2sft_fairseq.runtime import memory_reuse

# A page of 4 KiB that is touched for the first time is a fault: 28 MiB are 7,168 of them, or 14 huge pages.
PROGRAM = """
import resource, torch
import s2sft_fairseq
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.empty(7 << 20).fill_(1.0)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults)
"""


def run_program(program, **variables):
    """What a program prints with these variables, and no others for the allocator."""
    names = (*memory_reuse._OF_THE_USER, "GLIBC_TUNABLES", "LD_PRELOAD")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env={**clean, **variables}, capture_output=True, text=True, check=True).stdout


def page_faults(**variables):
    return int(run_program(PROGRAM, **variables))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_large_blocks_are_used_again():
    assert page_faults() < 20
    # The control: glibc left as it is asks the kernel for each of the four blocks.
    assert page_faults(MALLOC_TRIM_THRESHOLD_="131072") >= 4 * 14


# Large blocks are freed and small ones between them stay, which glibc's own trimming of the heap's end leaves as it is.
HOLES = """
import ctypes
import s2sft_fairseq
from fairseq.tasks.fairseq_task import LegacyFairseqTask
from s2sft_fairseq.runtime import memory_reuse
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
class Model:
    def eval(self):
        pass
def criterion(model, sample):
    large = []
    for _ in range(sample):
        large.append(libc.malloc(2000000))
        ctypes.memset(large[-1], 1, 2000000)
        libc.malloc(20000)
    for block in large:
        libc.free(block)
    return 1, 2, 3
task = LegacyFairseqTask(None)
for blocks in (1, 10, 100):
    assert task.valid_step(blocks, Model(), criterion) == (1, 2, 3)
    print(memory_reuse._resident_memory() // 1000000)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_holes_are_given_back():
    first, _, last = (int(line) for line in run_program(HOLES).split())
    assert last < first + 50
    # The control: nothing is given back where the user has settings of the allocator.
    of_the_user = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
    first, _, last = (int(line) for line in run_program(HOLES, **of_the_user).split())
    assert last > first + 150


def test_when_memory_is_given_back():
    """Where each step leaves behind what it needs: first at once, then whenever it is more than half as much again."""
    resident = [100]

    def steps(count, growth):
        """Which of so many steps give memory back, each of which leaves so much behind."""
        given_back = []
        for step in range(count):
            resident[0] += growth
            before = resident[0]
            holes.after_step()
            given_back += [step] * (resident[0] < before)
        return given_back

    def give_back():
        resident[0] = 50

    holes = memory_reuse.Holes(lambda: resident[0], give_back)
    assert steps(7, 10) == [0, 2, 4, 6]
    # The step behind it needs more, and so does each from then on.
    assert steps(5, 30) == [1, 3]
    # Smaller ones leave as much behind as the largest one may.
    assert steps(6, 10) == [1]


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, False),
        ({"MALLOC_ARENA_MAX": "2"}, False),
        ({"MALLOC_MMAP_MAX_": "0"}, True),
        ({"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, True),
        ({"GLIBC_TUNABLES": "glibc.rtld.nns=4"}, False),
        ({"LD_PRELOAD": "libjemalloc.so"}, True),
    ],
)
def test_settings_of_the_user_stay(monkeypatch, variables, found):
    for name in (*memory_reuse._OF_THE_USER, "GLIBC_TUNABLES", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert memory_reuse._has_settings_of_the_user() is found
