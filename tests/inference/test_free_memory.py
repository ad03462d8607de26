"""How much memory is free: read from the files of Linux, laid out here as systems lay them out."""

import pytest
import torch

from s2sft_fairseq.inference.free_memory import UNKNOWN, free_memory

CPU = torch.device("cpu")
KIB = 1024


def system(root, groups="", **files):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:   5000 kB\nHugePages_Total: 0\n")
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        write(root, name, text)
    return root


def write(root, name, text):
    file = root / "sys/fs/cgroup" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def test_what_the_kernel_calls_available(tmp_path):
    assert free_memory(CPU, system(tmp_path)) == 5000 * KIB


def test_a_limit_of_version_2(tmp_path):
    root = system(tmp_path, "0::/job/step\n")
    write(root, "job/step/memory.max", "max")
    write(root, "job/step/memory.current", 10)
    assert free_memory(CPU, root) == 5000 * KIB
    write(root, "job/memory.max", 3000)
    write(root, "job/memory.current", 1000)
    assert free_memory(CPU, root) == 2000
    write(root, "job/memory.stat", "anon 500\ninactive_file 400\n")
    assert free_memory(CPU, root) == 2400


def test_a_limit_of_version_1_in_a_container_that_sees_its_group_as_the_root(tmp_path):
    root = system(tmp_path, "5:cpu:/docker/1\n4:memory:/docker/1\n0::/\n")
    write(root, "memory/memory.limit_in_bytes", 3000)
    write(root, "memory/memory.usage_in_bytes", 1000)
    write(root, "memory/memory.stat", "inactive_file 1\ntotal_inactive_file 50\n")
    assert free_memory(CPU, root) == 2050


@pytest.mark.parametrize("used", [2000, 4000])
def test_more_used_than_allowed(tmp_path, used):
    root = system(tmp_path, "0::/\n")
    write(root, "memory.max", 2000)
    write(root, "memory.current", used)
    assert free_memory(CPU, root) == 0


def test_systems_that_do_not_say(tmp_path):
    assert free_memory(CPU, tmp_path) == UNKNOWN
    assert free_memory(torch.device("mps")) == UNKNOWN


def test_this_system():
    assert free_memory(CPU) > 2**20
