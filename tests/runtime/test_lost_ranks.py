"""If a rank is killed or stopped, the others end soon and name it."""

import json
import os
import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from processes import ROOT, run_in

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.runtime import lost_ranks

# The ranks of one training, forked after all imports; one of them has a fault before its third update.
RANKS = """
import json, os, signal, sys, time
sys.path.append(sys.argv[1])
from faults import fail_at, signalled
from s2sft_fairseq import cli, plugin

lost, number, port, words = json.loads(sys.argv[2])
processes = []
for rank in range(2):
    started = os.fork()
    if started == 0:
        os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port), WORLD_SIZE="2", RANK=str(rank))
        with fail_at(lost, 3, "before update", signalled(number)):
            os._exit(cli.main(words))
    processes.append(started)
os.waitid(os.P_PID, processes[lost], os.WEXITED | os.WSTOPPED | os.WNOWAIT)
began = time.monotonic()
status = os.waitpid(processes[1 - lost], 0)[1]
print(json.dumps([processes[lost], os.waitstatus_to_exitcode(status), time.monotonic() - began]))
os.kill(processes[lost], signal.SIGKILL)
"""
SECONDS = 3


def free_port():
    with socket.socket() as opened:
        opened.bind(("localhost", 0))
        return opened.getsockname()[1]


@pytest.mark.process
@pytest.mark.parametrize(("lost", "signal"), [(1, "SIGKILL"), (0, "SIGKILL"), (1, "SIGSTOP"), (0, "SIGSTOP")])
def test_the_other_rank_ends(lost, signal, tiny_data, tiny_options, tmp_path):
    words = ["train", str(tiny_data), *tiny_options.training, "--batch-size", "4", "--max-update", "9"]
    words += ["--save-dir", "run", "--save-interval-updates", "2", "--heartbeat-timeout", str(SECONDS)]
    number = int(getattr(__import__("signal"), signal))
    job = json.dumps([lost, number, free_port(), words])
    done = run_in(tmp_path, sys.executable, "-c", RANKS, ROOT / "tests" / "support", job)
    process, status, seconds = json.loads(done.stdout.splitlines()[-1])
    assert status == 2
    state = "has ended" if signal == "SIGKILL" else "is stopped"
    assert f"rank {lost} (process {process} on {socket.gethostname()}) {state}" in done.stderr
    # It waits for nothing or for an exchange, and also for a store that is stopped.
    assert seconds < (10 if signal == "SIGKILL" else SECONDS + 2 * lost_ranks._ANSWER + 10)
    assert (tmp_path / "run/checkpoint_1_2.pt").exists()


# A rank of torchrun that is killed once.
KILLED_ONCE = """
import contextlib, json, os, sys
sys.path.append(sys.argv[1])
from faults import fail_at, killed
from s2sft_fairseq import cli
is_killed = sys.argv[2] == "killed" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
with fail_at(1, 4, "before update", killed) if is_killed else contextlib.nullcontext():
    sys.exit(cli.main(json.loads(sys.argv[3])))
"""
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")


@pytest.mark.process
@pytest.mark.slow
def test_torchrun_starts_again(tiny_data, tiny_options, tmp_path):
    """A training that restarts by itself ends like one on two nodes without a fault."""
    (tmp_path / "rank.py").write_text(KILLED_ONCE, encoding="utf-8")

    def rank(fault, folder):
        words = ["train", str(tiny_data), *tiny_options.training, "--batch-size", "4", "--max-update", "6"]
        words += ["--save-interval-updates", "2", "--save-dir", folder]
        return "rank.py", ROOT / "tests" / "support", fault, json.dumps(words)

    alone = ("--standalone", "--nproc-per-node", 2, "--max-restarts", 1)
    done = run_in(tmp_path, *TORCHRUN, *alone, *rank("killed", "again"))
    assert "Loaded checkpoint again/checkpoint_last.pt (epoch 1 @ 2 updates)" in done.stdout
    # Two nodes: torchrun twice, on this machine's own address.
    nodes = ("--nnodes", 2, "--nproc-per-node", 1, "--master-addr", "127.0.0.1", "--master-port", free_port())
    with ThreadPoolExecutor(2) as pool:
        started = [
            pool.submit(run_in, tmp_path, *TORCHRUN, *nodes, "--node-rank", node, *rank("", "nodes")) for node in (0, 1)
        ]
        assert "done training" in "".join(run.result().stdout for run in started)
    found, expected = (load_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("again", "nodes"))
    torch.testing.assert_close(dict(found["model"]), dict(expected["model"]), rtol=0, atol=0)


class Store:
    """The store of three ranks. Some of them report that they survive."""

    def __init__(self, survivors=(), error=None):
        self.survivors, self.error = survivors, error

    def set(self, key, value):
        if self.error:
            raise self.error

    def check(self, keys):
        return any(key.endswith(f"/{rank}") for key in keys for rank in self.survivors)


GONE = 2**22 + 1
"""Larger than any process id."""


@pytest.fixture
def three_ranks(monkeypatch):
    """This process is rank 1 of three; the given store and processes are those of the others."""

    def make(store, *others):
        here = socket.gethostname()
        processes = [(host or here, pid) for host, pid in others]
        processes.insert(1, (here, os.getpid()))
        monkeypatch.setattr(lost_ranks._Ranks, "processes", tuple(processes))
        monkeypatch.setattr(lost_ranks, "_store", lambda: store)
        monkeypatch.setattr(lost_ranks, "_ANSWER", 0.2)
        monkeypatch.setattr(lost_ranks.distributed, "get_rank", lambda: 1)
        monkeypatch.setattr(lost_ranks.distributed, "is_initialized", lambda: True)

    return make


def fail(error):
    def main(*args, **options):
        raise error

    return lost_ranks._Rank(main)


def test_one_that_has_ended(three_ranks):
    three_ranks(Store(), (None, os.getpid()), (None, GONE))
    with pytest.raises(UserError, match=f"rank 1 ends, for rank 2 .process {GONE} on .* has ended.*600 s"):
        fail(RuntimeError("[gloo/transport/tcp] Connection closed by peer"))()


def test_survivors_are_not_named(three_ranks):
    """Not even those that have ended since."""
    three_ranks(Store(survivors=(0,)), (None, GONE), ("elsewhere", 5))
    with pytest.raises(UserError, match=r"for rank 2 .process 5 on elsewhere. does not answer"):
        fail(lost_ranks.distributed.DistBackendError("timeout"))()


def test_all_have_reported(three_ranks):
    three_ranks(Store(survivors=(0, 2)), (None, GONE), ("elsewhere", 5))
    with pytest.raises(UserError, match="for an exchange with the other ranks has failed"):
        fail(RuntimeError("Gloo: timed out"))()


def test_the_store_is_gone(three_ranks):
    three_ranks(Store(error=lost_ranks.distributed.DistNetworkError("closed")), ("elsewhere", 7), (None, os.getpid()))
    with pytest.raises(UserError, match=r"for rank 0 .process 7 on elsewhere. does not answer"):
        fail(RuntimeError("gloo"))()


def test_the_store_never_answers(three_ranks, monkeypatch):
    three_ranks(Store(), ("elsewhere", 7), (None, os.getpid()))
    monkeypatch.setattr(lost_ranks.threading, "Thread", Endless)
    with pytest.raises(UserError, match=r"for rank 0 .process 7 on elsewhere. does not answer"):
        fail(RuntimeError("gloo"))()


class Endless:
    """A thread that never ends."""

    def __init__(self, **options):
        pass

    def start(self):
        pass

    def join(self, seconds):
        pass

    def is_alive(self):
        return True


def test_its_own_errors_are_unchanged(three_ranks):
    three_ranks(Store(), (None, os.getpid()), (None, GONE))
    with pytest.raises(RuntimeError, match="shapes"):
        fail(RuntimeError("shapes do not match"))()


def test_a_process_that_fairseq_starts_installs_the_patches():
    """It is pickled with its function, and joins the other ranks there."""
    restore, arguments = lost_ranks._Rank(print).__reduce__()
    assert restore(*arguments).main is print
