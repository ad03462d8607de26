"""The SLURM scripts of the documentation, with stand-ins for ``srun``, ``scontrol`` and ``torchrun``.

They are queued again after a signal, and then end.
"""

import json
import re
import shutil
import sys

import pytest
from processes import ROOT, environment, run_in

PAGE = ROOT / "docs" / "howto" / "slurm.md"
# A training of a few updates, which gets SIGTERM after the third one, as SLURM sends it when the time is over.
TRAINING = """
import signal, sys
sys.path.append({support!r})
from faults import fail_at, signalled
from s2sft_fairseq import cli
words = sys.argv[sys.argv.index("train"):]
with fail_at(0, 3, "after update", signalled(signal.SIGTERM)):
    sys.exit(cli.main([*words, *{options!r}]))
"""
OPTIONS = ("--cpu", "--num-workers", "0", "--max-update", "5", "--batch-size", "8")
OPTIONS += ("--max-source-positions", "24", "--max-target-positions", "16")
STAND_INS = {
    "srun": 'exec "$@"',
    "scontrol": 'echo "$@" >> scontrol.log; echo node0',
    "s2sft": 'exec {python} training.py "$@"',
    "torchrun": 'exec {python} training.py "$@"',
}


@pytest.mark.process
@pytest.mark.parametrize("heading", ["One machine", "Two machines"])
def test_requeued_until_it_is_done(heading, tiny_parts, tmp_path):
    text = PAGE.read_text(encoding="utf-8")
    script = re.search(rf"^## {heading}\n.*?^```bash\n(.*?)^```", text, re.M | re.S)[1]
    (tmp_path / "job.sh").write_text(script, encoding="utf-8")
    for name in ("data", "encoder"):
        shutil.copytree(tiny_parts / name, tmp_path / name)
    support = str(ROOT / "tests" / "support")
    (tmp_path / "training.py").write_text(TRAINING.format(support=support, options=OPTIONS), encoding="utf-8")
    (tmp_path / "bin").mkdir()
    for name, line in STAND_INS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line.format(python=sys.executable)}\n", encoding="utf-8")
        (tmp_path / "bin" / name).chmod(0o755)
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "node0"}
    slurm["PATH"] = f"{tmp_path / 'bin'}:{environment()['PATH']}"
    log = tmp_path / "scontrol.log"
    for status, state, requeued in ((75, "to be continued", 1), (0, "done", 1)):
        run_in(tmp_path, "bash", "job.sh", status=status, **slurm)
        assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == state
        assert log.read_text().splitlines().count("requeue 7") == requeued
