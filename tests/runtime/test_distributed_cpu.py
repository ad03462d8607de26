"""Several processes on the CPU train together and resume, or fail with a clear text; none trains nothing or races."""

import json
import re
import socket
import sys
from types import SimpleNamespace

import pytest
import torch

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.runtime.distributed_cpu import configure


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
    configure(cfg)
    return vars(cfg.distributed_training)


def test_one_process_is_left_alone():
    assert configured() == vars(options().distributed_training)


@pytest.mark.parametrize("method", [None, "tcp://localhost:29500"])
def test_refuses_what_would_train_nothing(method):
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


@pytest.mark.parametrize("backend", ["fully_sharded", "slowmo"])
@pytest.mark.usefixtures("under_torchrun")
def test_refuses_what_needs_a_gpu(backend):
    with pytest.raises(UserError, match=rf"--ddp-backend {backend} needs a GPU: use pytorch_ddp"):
        configured(ddp_backend=backend)


def test_a_gpu_is_left_to_fairseq(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    cfg = options(distributed_world_size=2)
    cfg.common.cpu = False
    configure(cfg)
    assert vars(cfg.distributed_training) == vars(options(distributed_world_size=2).distributed_training)


def free_port():
    with socket.socket() as opened:
        opened.bind(("localhost", 0))
        return opened.getsockname()[1]


# What torchrun starts, for one command after the other, in processes forked once everything is imported: that takes
# most of the time.
TWO_RANKS = """
import json, os, sys
import torch._dynamo  # which PyTorch's optimizers import
from s2sft_fairseq import cli
for port, words in json.loads(sys.argv[1]):
    ranks = []
    for rank in range(2):
        ranks.append(os.fork())
        if ranks[-1] == 0:
            os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port), WORLD_SIZE="2", RANK=str(rank))
            status = cli.main(words)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    if any(os.waitpid(rank, 0)[1] for rank in ranks):
        sys.exit(1)
    print("=== next command", flush=True)
"""


def test_two_ranks_resume_where_they_stopped(run_process, tiny_data, tiny_options, tmp_path):
    train = ("train", str(tiny_data), *tiny_options.training, "--batch-size", "4", "--max-update", "4")
    whole = (*train, "--save-dir", "whole", "--save-interval-updates", "2")
    resume = ("--restore-file", "whole/checkpoint_1_2.pt", "--ddp-backend", "legacy_ddp")
    resumed = (*train, "--save-dir", "resumed", *resume)
    commands = json.dumps([(free_port(), whole), (free_port(), resumed)])
    done = run_process(sys.executable, "-c", TWO_RANKS, commands)
    assert done.stderr == ""
    whole, resumed, _ = done.stdout.split("=== next command")
    assert "training on 2 devices" in whole
    assert "training on 2 devices" in resumed
    assert "Loaded checkpoint whole/checkpoint_1_2.pt (epoch 1 @ 2 updates)" in resumed
    losses = [re.findall(r"loss=([\d.]+).*num_updates=(\d+)", output) for output in (whole, resumed)]
    assert [update for _, update in losses[0]] == ["1", "2", "3", "4"]
    assert losses[1] == losses[0][2:]

    first, second = (load_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("whole", "resumed"))
    for name, value in first["model"].items():
        assert torch.equal(second["model"][name], value), name
    assert second["optimizer_history"][-1]["num_updates"] == 4
