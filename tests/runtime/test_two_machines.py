"""A training on two machines, which are network namespaces with a host name each and a cable between them.

Needs root, to make them.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from processes import ROOT, run_in

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.runtime import lost_ranks

pytestmark = pytest.mark.process
ADDRESS = "10.77.0.{}"
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "cable", "MASTER_ADDR": ADDRESS.format(1), "MASTER_PORT": "29500"}
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nnodes", 2, "--nproc-per-node", 1)
SETTINGS = ("--batch-size", "4", "--max-update", "4", "--optimizer", "fused_adamw", "--adam-eps", "0.01")
SETTINGS += ("--dropout", "0", "--attention-dropout", "0")
SECONDS = 3


class Machines:
    """Two network namespaces."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def start(self, folder: Path, *words: object) -> list[Future]:
        """Run a command on each of them; a ``{rank}`` in a word is the number of the machine, from 0."""
        with ThreadPoolExecutor(2) as pool:
            return [pool.submit(self._run, folder, rank, *words) for rank in (0, 1)]

    def _run(self, folder: Path, rank: int, *words: object) -> subprocess.CompletedProcess:
        there = ("ip", "netns", "exec", self.names[rank], "unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"')
        own = [str(word).replace("{rank}", str(rank)) for word in words]
        ranks = {"RANK": str(rank), "WORLD_SIZE": "2"}
        return run_in(folder, *there, f"machine{rank}", *own, status=None, **ENVIRONMENT, **ranks)


@pytest.fixture
def machines() -> Iterator[Machines]:
    names = [f"s2sft-{os.getpid()}-{number}" for number in (0, 1)]
    if shutil.which("ip") is None or subprocess.run(["ip", "netns", "add", names[0]], capture_output=True).returncode:
        pytest.skip("network namespaces can be made by root alone")
    cable = [
        *("link", "add", "cable", "netns", names[0], "type", "veth"),
        *("peer", "name", "cable", "netns", names[1]),
    ]
    try:
        for words in (["netns", "add", names[1]], cable):
            subprocess.run(["ip", *words], check=True)
        for number, name in enumerate(names, start=1):
            own = ["address", "add", f"{ADDRESS.format(number)}/24", "dev", "cable"]
            for words in (own, ["link", "set", "cable", "up"], ["link", "set", "lo", "up"]):
                subprocess.run(["ip", "-n", name, *words], check=True)
        yield Machines(names)
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)


def test_they_train_as_one_process(machines, call_command, tiny_data, tiny_options, tmp_path):
    def words(folder, frequency):
        return ("train", tiny_data, *tiny_options.training, *SETTINGS, "--update-freq", frequency, "--save-dir", folder)

    nodes = ("--node-rank", "{rank}", "--master-addr", ADDRESS.format(1), "--master-port", 29500)
    started = machines.start(tmp_path, *TORCHRUN, *nodes, "-m", "s2sft_fairseq", *words("two", 1))
    first, second = (run.result() for run in started)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert "training on 2 devices" in first.stdout
    call_command(*words("one", 2))
    found, expected = (load_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("two", "one"))
    torch.testing.assert_close(dict(found["model"]), dict(expected["model"]), rtol=0, atol=1e-6)


# The second machine pulls out the cable before the third update.
CUT = """
import json, subprocess, sys, time
sys.path.append(sys.argv[1])
from faults import fail_at
from s2sft_fairseq import cli

def cut():
    subprocess.run(["ip", "link", "set", "cable", "down"], check=True)
    print("at", time.monotonic())

with fail_at(1, 3, "before update", cut):
    status = cli.main(json.loads(sys.argv[2]))
print("at", time.monotonic())
sys.exit(status)
"""


def test_a_cable_that_is_pulled_out(machines, tiny_data, tiny_options, tmp_path):
    """Each names the other, which it cannot ask."""
    words = ["train", str(tiny_data), *tiny_options.training, "--batch-size", "4", "--max-update", "9"]
    words += ["--save-dir", "run", "--save-interval-updates", "2", "--heartbeat-timeout", str(SECONDS)]
    job = (sys.executable, "-c", CUT, ROOT / "tests" / "support", json.dumps(words))
    ended = []
    for rank, run in enumerate(machines.start(tmp_path, *job)):
        done, other = run.result(), 1 - rank
        assert done.returncode == 2, done.stderr
        assert re.search(rf"rank {rank} ends, for rank {other} \(process \d+ on machine{other}\) does not", done.stderr)
        ended += [float(time) for time in re.findall(r"^at (\S+)$", done.stdout, re.M)]
    first, cut, second = ended
    assert max(first, second) - cut < SECONDS + 2 * lost_ranks._ANSWER + 10
    assert (tmp_path / "run/checkpoint_1_2.pt").exists()
