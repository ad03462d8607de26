"""On the CPU, several processes train together, all precisions work, and freed memory is reused."""

import os
import platform
import re
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from fairseq.optim import FP16Optimizer

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.runtime import cpu

# Several processes train together and resume, or fail with a clear text; no process trains nothing or races.


def options(**changes):
    training = {
        "distributed_world_size": 1,
        "distributed_rank": 0,
        "distributed_init_method": None,
        "distributed_no_spawn": False,
        "distributed_backend": "nccl",
        "ddp_backend": "pytorch_ddp",
        **changes,
    }
    common = SimpleNamespace(tpu=False, cpu=True)
    return SimpleNamespace(common=common, distributed_training=SimpleNamespace(**training))


@pytest.fixture(autouse=True)
def outside_torchrun(monkeypatch):
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def under_torchrun(monkeypatch):
    for name, value in {"MASTER_ADDR": "localhost", "MASTER_PORT": "1", "RANK": "1", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)


def configured(**changes):
    cfg = options(**changes)
    cpu.configure(cfg)
    return vars(cfg.distributed_training)


def test_one_process_is_left_alone():
    assert configured() == vars(options().distributed_training)


@pytest.mark.parametrize("method", [None, "tcp://localhost:29500"])
def test_refuses_options_that_would_train_nothing(method):
    with pytest.raises(UserError, match=r"--distributed-world-size 2 on the CPU: .*torchrun --nproc_per_node 2"):
        configured(distributed_world_size=2, distributed_init_method=method)


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.usefixtures("under_torchrun")
def test_takes_its_place_among_the_processes_of_torchrun(size):
    assert configured(distributed_world_size=size) == {
        "distributed_world_size": 2,
        "distributed_rank": 1,
        "distributed_init_method": "env://",
        "distributed_no_spawn": True,
        "distributed_backend": "gloo",
        "ddp_backend": "pytorch_ddp",
    }


@pytest.mark.usefixtures("under_torchrun")
def test_refuses_another_size_than_that_of_torchrun():
    with pytest.raises(UserError, match=r"--distributed-world-size 3 on the CPU"):
        configured(distributed_world_size=3)


def test_processes_started_by_the_user():
    given = {
        "distributed_world_size": 2,
        "distributed_rank": 1,
        "distributed_init_method": "tcp://localhost:29500",
        "distributed_no_spawn": True,
    }
    assert configured(**given) == {**given, "distributed_backend": "gloo", "ddp_backend": "pytorch_ddp"}


def test_a_gpu_is_left_to_fairseq(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    cfg = options(distributed_world_size=2)
    cfg.common.cpu = False
    cpu.configure(cfg)
    assert vars(cfg.distributed_training) == vars(options(distributed_world_size=2).distributed_training)


# All precisions that fairseq offers train, resume, validate and generate.


def test_the_flat_copy_has_every_parameter_once():
    parameters = [torch.nn.Parameter(torch.randn(shape).half()) for shape in ((2, 3), (4,), (1, 2, 2))]
    (device, flat), *others = FP16Optimizer.build_fp32_params(None, parameters).items()
    assert (device, others, flat.dtype) == (None, [], torch.float32)
    assert torch.equal(flat.data, torch.cat([parameter.data.float().view(-1) for parameter in parameters]))
    assert torch.equal(flat.grad, torch.zeros(14))


def losses(output):
    return [float(loss) for loss in re.findall(r"train_inner \| .* loss=([\d.]+)", output)]


@pytest.fixture
def train(call_command, tiny_data, tiny_options):
    """Train up to an update in a given precision; return the output."""

    def run(precision, update):
        options = (*tiny_options.training, "--save-dir", "saved", "--disable-validation", precision)
        return call_command("train", tiny_data, *options, "--max-update", update).stdout

    return run


@pytest.mark.parametrize(
    ("precision", "warning"),
    [
        ("--bf16", None),
        ("--memory-efficient-bf16", None),
        ("--fp16", "--fp16 on the CPU is slower than 32 bits: leave it out, or use --bf16"),
        ("--memory-efficient-fp16", None),
        ("--amp", None),
    ],
)
def test_trains(train, monkeypatch, precision, warning):
    monkeypatch.setattr(cpu, "multiplies_bf16", lambda: True)
    output = train(precision, 5)
    assert losses(output)[-1] < losses(output)[0]
    assert re.findall(rf"WARNING \| {cpu.__name__} \| (.*)", output) == ([warning] if warning else [])
    saved = load_checkpoint("saved/checkpoint_last.pt")
    assert all(value.dtype == torch.float32 for value in saved["model"].values() if value.is_floating_point())


def test_amp_multiplies_in_bfloat16(train, monkeypatch):
    """Losses are near those in float32, but not equal. A CPU without bfloat16 trains in float32 and warns."""

    def train_with_amp(multiplies):
        monkeypatch.setattr(cpu, "multiplies_bf16", lambda: multiplies)
        output = train("--amp", 5)
        shutil.rmtree("saved")
        return losses(output), re.findall(rf"WARNING \| {cpu.__name__} \| (.*)", output)

    found, no_warnings = train_with_amp(True)
    slow, (warning,) = train_with_amp(False)
    exact = losses(train("--seed=1", 5))  # the default
    assert not no_warnings and found != exact
    assert found == pytest.approx(exact, rel=0.02)
    assert slow == exact
    assert "--amp" in warning and "AVX512-BF16" in warning and "32 bits" in warning


@pytest.mark.parametrize("precision", ["--bf16", "--fp16", "--amp"])
def test_resumes_validates_and_generates(train, call_command, tiny_data, precision):
    train(precision, 2)
    resumed = train(precision, 4)
    assert "Loaded checkpoint saved/checkpoint_last.pt (epoch 1 @ 2 updates)" in resumed
    assert len(losses(resumed)) == 2
    read = (tiny_data, "--path", "saved/checkpoint_last.pt", "--batch-size", 8, "--cpu", precision)
    assert "valid on 'valid' subset | loss" in call_command("validate", *read).stdout
    assert call_command("generate", *read, "--beam", 2).stdout.count("H-") == 10


@pytest.mark.parametrize("optimizer", ["adam", "fused_adamw"])
@pytest.mark.parametrize("precision", ["--fp16", "--memory-efficient-fp16"])
def test_a_gradient_that_overflows_is_skipped(call_command, tiny_data, tiny_options, optimizer, precision):
    """Also on the CPU, where fairseq would need a GPU; the loss scale falls until updates continue."""
    options = (*tiny_options.training, "--optimizer", optimizer, "--save-dir", "saved", "--disable-validation")
    output = call_command("train", tiny_data, *options, precision, "--fp16-init-scale", 2**30, "--max-update", 3).stdout
    assert output.count("gradient overflow detected") >= 5
    scales = [float(scale) for scale in re.findall(r"setting loss scale to: ([\d.e+]+)", output)]
    assert scales == [2 ** (30 - number) for number in range(1, len(scales) + 1)]
    assert len(losses(output)) == 3
    saved = load_checkpoint("saved/checkpoint_last.pt")["model"]
    assert all(value.isfinite().all() for value in saved.values())


def test_a_training_on_a_gpu_is_left_alone():
    seen = []
    own = torch.Tensor.cuda
    for on_gpu in (True, False):
        cpu._train_step(lambda _: seen.append(torch.Tensor.cuda), SimpleNamespace(cuda=on_gpu))
    assert seen[0] is own and seen[1] is not own and torch.Tensor.cuda is own


# Freed memory is reused without the kernel: counted in page faults of a process of its own. Free memory between blocks
# in use is returned.


# The first access to a page of 4 KiB is a fault: 28 MiB are 7,168 pages, or 14 huge pages.
PROGRAM = """
import resource, torch
import s2sft_fairseq.plugin
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        torch.empty(7 << 20).fill_(1.0)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults)
"""


def run_program(program, **variables):
    """Return the output of a program with these variables, and no others for the allocator."""
    names = (*cpu._OF_THE_USER, "GLIBC_TUNABLES", "LD_PRELOAD")
    clean = {name: value for name, value in os.environ.items() if name not in names}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env={**clean, **variables}, capture_output=True, text=True, check=True).stdout


def page_faults(**variables):
    return int(run_program(PROGRAM, **variables))


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
@pytest.mark.process
def test_large_blocks_are_reused():
    assert page_faults() < 20
    # The control: by default, glibc asks the kernel for each of the four blocks.
    assert page_faults(MALLOC_TRIM_THRESHOLD_="131072") >= 4 * 14


# Large blocks are freed and small ones between them stay; glibc's own trimming of the heap's end does not return these.
HOLES = """
import ctypes
import s2sft_fairseq.plugin
from fairseq.tasks.fairseq_task import LegacyFairseqTask
from s2sft_fairseq.runtime import cpu
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
    print(cpu._resident_memory() // 1000000)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
@pytest.mark.process
def test_holes_are_returned():
    first, _, last = (int(line) for line in run_program(HOLES).split())
    assert last < first + 50
    # The control: nothing is returned if the user has settings for the allocator.
    of_the_user = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
    first, _, last = (int(line) for line in run_program(HOLES, **of_the_user).split())
    assert last > first + 150


def test_when_memory_is_returned():
    """If each step leaves its memory behind: first at once, then whenever it has grown by more than half."""
    resident = [100]

    def steps(count, growth):
        """Return which steps give memory back, if each leaves this much behind."""
        given_back = []
        for step in range(count):
            resident[0] += growth
            before = resident[0]
            holes.after_step()
            given_back += [step] * (resident[0] < before)
        return given_back

    def give_back():
        resident[0] = 50

    holes = cpu.Holes(lambda: resident[0], give_back)
    assert steps(7, 10) == [0, 2, 4, 6]
    # The next step needs more, and so does each one after it.
    assert steps(5, 30) == [1, 3]
    # Smaller steps leave as much behind as the largest one may.
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
    for name in (*cpu._OF_THE_USER, "GLIBC_TUNABLES", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cpu._has_settings_of_the_user() is found
