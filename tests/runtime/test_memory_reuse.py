"""Freed memory is used again without the kernel: counted in page faults of a process of its own."""

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


def page_faults(**variables):
    names = (*memory_reuse._OF_THE_USER, "GLIBC_TUNABLES", "LD_PRELOAD")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env={**clean, **variables}, capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_large_blocks_are_used_again():
    assert page_faults() < 20
    # The control: glibc left as it is asks the kernel for each of the four blocks.
    assert page_faults(MALLOC_TRIM_THRESHOLD_="131072") >= 4 * 14


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
