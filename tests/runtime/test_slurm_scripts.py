"""The SLURM scripts of the documentation, with stand-ins for ``srun``, ``scontrol`` and ``torchrun``.

They are queued again after a signal, and then end.
"""

import json
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import ROOT, environment, run_in

pytestmark = pytest.mark.process

PAGE = ROOT / "docs" / "howto" / "slurm.md"
JOB = """
import os, signal, sys
sys.path.append({support!r})
from s2sft_fairseq import cli
words = sys.argv[1:]
if "s2sft_fairseq" in words:  # those of torchrun come first
    words = words[words.index("s2sft_fairseq") + 1 :]
words += {options!r}
{fault}
sys.exit(cli.main(words))
"""
# The third update of a training is followed by SIGTERM, as SLURM sends it when the time is over.
SIGNAL_A_TRAINING = """
from faults import fail_at
process = os.getppid() if "LOCAL_RANK" in os.environ else os.getpid()  # torchrun, or the training itself
with fail_at(0, 3, "after update", lambda: os.kill(process, signal.SIGTERM)):
    sys.exit(cli.main(words))
"""
SIGNAL_A_GENERATION = """
from s2sft_fairseq.inference.files import ResumableOutput
append = ResumableOutput.append

def append_and_signal(output, lines):
    append(output, lines)
    if output.written == 2:
        os.kill(os.getpid(), signal.SIGTERM)

ResumableOutput.append = append_and_signal
"""
KILL_A_TOKENIZATION = """
from s2sft_fairseq.tokenization import tokenize_files
if words[0] == "tokenize":
    words += ["--workers", "1"]
    if os.environ.get("KILLED"):
        tokenize_files._tokenize = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""
OF_TRAINING = ("--cpu", "--num-workers", "0", "--max-update", "5", "--batch-size", "8")
OF_TRAINING += ("--max-source-positions", "24", "--max-target-positions", "16")
STAND_INS = {
    "srun": 'exec "$@"',
    "scontrol": 'echo "$@" >> scontrol.log; echo node0',
    "s2sft": 'exec {python} job.py "$@"',
    "torchrun": 'exec {python} job.py "$@"',
}
REAL_TORCHRUN = 'exec {python} -m torch.distributed.run --standalone --nproc-per-node 2 job.py "$@"'
Start = Callable[..., None]


def script(heading: str, number: int = 0) -> str:
    """Return a block of commands of a section."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^```bash\n(.*?)^```", section, re.M | re.S)[number]


@pytest.fixture
def prepare(tiny_parts: Path, tmp_path: Path) -> Callable[..., Start]:
    """Write a script and its stand-ins; the result runs it: ``start(status, **environment)``."""

    def written(text: str, fault: str, options: tuple[str, ...] = (), **stand_ins: str) -> Start:
        (tmp_path / "job.sh").write_text(text, encoding="utf-8")
        job = JOB.format(support=str(ROOT / "tests" / "support"), options=options, fault=fault)
        (tmp_path / "job.py").write_text(job, encoding="utf-8")
        (tmp_path / "bin").mkdir()
        for name, line in (STAND_INS | stand_ins).items():
            (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{line.format(python=sys.executable)}\n", encoding="utf-8")
            (tmp_path / "bin" / name).chmod(0o755)
        slurm = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "node0"}
        slurm["PATH"] = f"{tmp_path / 'bin'}:{environment()['PATH']}"

        def start(status: int, **changes: str) -> None:
            run_in(tmp_path, "bash", "job.sh", status=status, **slurm, **changes)

        return start

    shutil.copytree(tiny_parts / "encoder", tmp_path / "encoder")
    return written


def requeued(folder: Path) -> int:
    """Return how often the job was queued again."""
    return (folder / "scontrol.log").read_text(encoding="utf-8").splitlines().count("requeue 7")


@pytest.mark.parametrize(
    ("heading", "stand_ins", "signalled"),
    [
        ("One machine", {}, 75),
        ("Two machines", {}, 75),
        pytest.param("Two machines", {"torchrun": REAL_TORCHRUN}, 1, marks=pytest.mark.slow, id="torchrun"),
    ],
)
def test_a_training_is_queued_again_until_it_is_done(heading, stand_ins, signalled, prepare, tiny_parts, tmp_path):
    shutil.copytree(tiny_parts / "data", tmp_path / "data")
    start = prepare(script(heading), SIGNAL_A_TRAINING, OF_TRAINING, **stand_ins)
    for status, updates, state in ((signalled, 3, "to be continued"), (0, 5, "done")):
        start(status)
        found = json.loads((tmp_path / "run" / "status.json").read_text())
        assert (found["updates"], found["state"], requeued(tmp_path)) == (updates, state, 1)


def test_a_part_of_a_generation_is_queued_again(prepare, call_command, tiny_corpus, tiny_parts, tmp_path):
    """One task of the array runs as a job. With the other parts, its lines are those of a single run."""
    shutil.copytree(tiny_parts / "model", tmp_path / "out" / "model")
    shutil.copy(tiny_corpus / "train.src", tmp_path / "all.txt")
    options = ("--cpu", "--buffer-size", "2")
    start = prepare(script("An array of generations"), SIGNAL_A_GENERATION, options)
    start(75, SLURM_ARRAY_TASK_ID="5")
    assert requeued(tmp_path) == 1 and not (tmp_path / "parts" / "5.txt").exists()
    start(0, SLURM_ARRAY_TASK_ID="5")
    assert requeued(tmp_path) == 1
    words = ("generate", "--path", "out/model", "--input", "all.txt", *options)
    for part in {*range(16)} - {5}:
        call_command(*words, "--output", f"parts/{part}.txt", "--num-shards", 16, "--shard-id", part)
    call_command(*words, "--output", "expected.out")
    run_in(tmp_path, "bash", "-c", script("An array of generations", 1))
    assert (tmp_path / "all.out").read_text() == (tmp_path / "expected.out").read_text()
    assert (tmp_path / "all.out").read_text().count("\n") == 50


def test_shards_are_tokenized_and_train(prepare, call_command, tiny_corpus, tmp_path):
    """A task that is killed is queued again. The shards have the lines of the whole; a training reads one per epoch."""
    sides = [(tiny_corpus / f"train.{side}").read_text().splitlines() for side in ("src", "tgt")]
    lines = [json.dumps({"src": source, "tgt": target}) + "\n" for source, target in zip(*sides, strict=True)]
    (tmp_path / "corpus").mkdir()
    for name, part in (("0", lines[:32]), ("1", lines[32:]), ("all", lines)):
        (tmp_path / "corpus" / f"{name}.jsonl").write_text("".join(part), encoding="utf-8")
    start = prepare(script("An array of tokenizations"), KILL_A_TOKENIZATION)
    start(0, SLURM_ARRAY_TASK_ID="0")
    start(137, SLURM_ARRAY_TASK_ID="1", KILLED="1")
    assert {path.suffix for path in (tmp_path / "tokens" / "1").glob("*1.*")} == {".tmp"}
    start(0, SLURM_ARRAY_TASK_ID="1")
    assert sorted(path.name for path in (tmp_path / "tokens" / "1").iterdir()) == ["1.src", "1.tgt", "SHA256SUMS"]
    done = {path: path.stat().st_mtime_ns for path in tmp_path.glob("data/*/*")}
    start(0, SLURM_ARRAY_TASK_ID="1")
    assert done == {path: path.stat().st_mtime_ns for path in tmp_path.glob("data/*/*")}

    call_command("tokenize", "--tokenizer-dir", "encoder", "--input", "corpus/all.jsonl", "--output-dir", "tokens")
    for side in ("src", "tgt"):
        parts = [(tmp_path / "tokens" / part / f"{part}.{side}").read_text() for part in ("0", "1")]
        assert "".join(parts) == (tmp_path / "tokens" / f"all.{side}").read_text()
    for side in ("src", "tgt"):
        shutil.copy(tiny_corpus / f"valid.{side}", tmp_path / "tokens" / f"valid.{side}")
    validation, training = script("An array of tokenizations", 1).replace("\\\n", " ").splitlines()
    call_command(*validation.split()[2:])
    data, *options = re.sub(r"\$\(.*\)", "data/0:data/1", training).split()[3:]
    log = call_command("train", data, *options, *OF_TRAINING, "--max-update", 99, "--max-epoch", 2).stdout
    # 32 and 18 pairs in batches of 8
    assert re.findall(r"Saved checkpoint run/checkpoint(\d)\.pt .* @ (\d+) updates", log) == [("1", "4"), ("2", "7")]
