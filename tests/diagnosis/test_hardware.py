"""The hardware of a machine, as the files of Linux and PyTorch tell it."""

from collections import namedtuple
from types import SimpleNamespace

import pytest
import torch

from s2sft_fairseq.diagnosis import hardware
from s2sft_fairseq.diagnosis.hardware import allocator, examine_hardware, usable_cores
from s2sft_fairseq.diagnosis.report import Report

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(hardware, "_SAMPLE", 0.001)


@pytest.fixture
def machine(monkeypatch):
    """A machine of 8 cores that are idle, with 4 threads and 100 GiB."""
    monkeypatch.setattr(hardware, "usable_cores", lambda root: 8)
    monkeypatch.setattr(hardware, "_idle_cores", lambda: 8.0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    monkeypatch.setattr(hardware.shutil, "disk_usage", lambda path: Usage(0, 0, 100 << 30))
    monkeypatch.setattr(hardware, "processor", lambda: ("Fast", frozenset({"avx2", "avx512f", "avx_vnni"})))
    return monkeypatch


def examined():
    report = Report()
    examine_hardware(report)
    return report


def test_this_machine():
    facts = examined().facts
    assert facts["CPU"]["threads of PyTorch"] == torch.get_num_threads()
    assert facts["CPU"]["cores that the process may use"] > 0
    assert facts["memory and disks"]["free memory"].endswith(" GiB")


def test_instructions(machine):
    facts = examined().facts["CPU"]
    assert facts["processor"] == "Fast" and facts["instructions"] == ["AVX2", "AVX-512", "VNNI"]


def test_more_threads_than_cores(machine):
    machine.setattr(hardware, "usable_cores", lambda root: 2.5)
    (note,) = examined().notes
    assert "4 threads" in note and "OMP_NUM_THREADS=2" in note


def test_other_processes_use_the_cores(machine):
    machine.setattr(hardware, "_idle_cores", lambda: 1.0)
    (note,) = examined().notes
    assert "1.0 cores are idle" in note and "--share-cores" in note
    machine.setattr(hardware, "_idle_cores", lambda: None)
    report = examined()
    assert not report.notes and "idle cores" not in report.facts["CPU"]


def test_idle_cores():
    ticks = iter([100.0, 100.004])
    assert hardware._idle_cores(lambda: next(ticks)) > 0
    assert hardware._idle_cores(lambda: 0.0) is None


def test_a_full_disk_is_a_problem(machine):
    machine.setattr(hardware.shutil, "disk_usage", lambda path: Usage(0, 0, 5))
    problems = examined().problems
    assert problems and all("5 bytes free" in problem and "delete" in problem for problem in problems)


def test_limits_of_control_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(hardware.os, "sched_getaffinity", lambda process: {0, 1, 2}, raising=False)
    assert usable_cores(tmp_path) == 3
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job\n")
    group = tmp_path / "sys/fs/cgroup/job"
    group.mkdir(parents=True)
    (group / "cpu.max").write_text("max 100000\n")
    assert usable_cores(tmp_path) == 3
    (group / "cpu.max").write_text("150000 100000\n")
    assert usable_cores(tmp_path) == 1.5


def test_allocators(tmp_path):
    assert allocator(tmp_path) == "the C library's"
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/maps").write_text("7f00 r-xp /usr/lib/libtcmalloc_minimal.so.4\n")
    assert allocator(tmp_path) == "tcmalloc"


def test_no_gpu(machine):
    machine.setattr(torch.cuda, "is_available", lambda: False)
    machine.setattr(hardware.shutil, "which", lambda name: f"/usr/bin/{name}")
    machine.setattr(torch.version, "cuda", None)
    report = examined()
    assert report.facts["GPU"] == {"found": False}
    assert "install a build with CUDA" in report.notes[0]


@pytest.mark.parametrize("failure", [None, "operators that work: none"])
def test_a_gpu(machine, failure):
    facts = SimpleNamespace(name="H", major=9, minor=0, total_memory=80 << 30)
    machine.setattr(torch.cuda, "is_available", lambda: True)
    machine.setattr(torch.cuda, "device_count", lambda: 1)
    machine.setattr(torch.cuda, "device", lambda index: torch.no_grad())
    machine.setattr(torch.cuda, "get_device_properties", lambda index: facts)
    machine.setattr(hardware, "free_memory", lambda device, *root: 40 << 30)
    machine.setattr(hardware.gpu, "multiplies_bf16", lambda: True)
    tried = []
    machine.setattr(hardware, "flash_failure", lambda device, **kind: tried.append(kind["dtype"]) or failure)
    report = examined()
    assert report.facts["GPU"] == {
        "cuda:0": "H",
        "compute capability": "9.0",
        "GPU memory": "80.0 GiB, 40.0 GiB free",
        "bfloat16": True,
        "flash kernels": failure is None,
    }
    assert tried == [torch.bfloat16]
    assert len(report.notes) == (failure is not None)
