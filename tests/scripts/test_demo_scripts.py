"""What the demo reads off logs and results."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from s2sft_fairseq.recipes import training_log

SCRIPTS = Path(__file__).parents[2] / "scripts"
TRAINING = '{"epoch": 1, "loss": "9.5", "num_updates": "25", "lr": "0.1"}'
HELD_OUT = '{"epoch": 1, "valid_loss": "8.5", "valid_num_updates": "25"}'
END_OF_EPOCH = '{"epoch": 1, "train_loss": "9.1", "train_num_updates": "50"}'


def test_lines_of_the_output_and_of_the_log_file():
    parse = training_log.parse
    for prefix in ("", "2026-11-20 12:00:00 | INFO | train_inner | "):
        assert parse(prefix + TRAINING) == ("training", json.loads(TRAINING))
        kind, record = parse(prefix + HELD_OUT)
        assert (kind, record["loss"], record["num_updates"]) == ("held out", "8.5", "25")
        assert parse(prefix + END_OF_EPOCH) is None
    assert parse("2026-11-20 | INFO | fairseq_cli.train | {'_name': None, 'common': {\"x") is None
    assert parse("no numbers") is None


def test_progress(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["training_log.py", "50"])
    monkeypatch.setattr(sys, "stdin", ["noise\n", TRAINING, HELD_OUT, "x | WARNING | y | 3 sources are cut\n"])
    training_log.main()
    assert capsys.readouterr().out.splitlines() == [
        "  update 25/50: training loss 9.5",
        "  update 25/50: held out loss 8.5",
        "  x | WARNING | y | 3 sources are cut",
    ]


# In a process of its own: rouge-score's logging takes over the streams of the process that imports it.
def report(folder: Path, log: str) -> subprocess.CompletedProcess:
    texts = {
        "results": "S-1\tsource\nD-1\t-0.5\tthe second\nD-0\t-0.25\tthe first one\nGenerate test\n",
        "source": "the first body\nanother body\n",
        "reference": "the first\nthe second\n",
        "log": log,
    }
    options = ["--output", str(folder), "--setting", "own-default"]
    for name, text in texts.items():
        (folder / name).write_text(text)
        options += [f"--{name}", str(folder / name)]
    return subprocess.run([sys.executable, SCRIPTS / "demo_report.py", *options], capture_output=True, text=True)


def test_report(tmp_path):
    done = report(tmp_path, "\n".join(["noise", TRAINING, HELD_OUT, END_OF_EPOCH]))
    assert done.returncode == 0, done.stderr
    assert "generated  the first one" in done.stdout
    # 2 of 3 words and 2 of 2: F1 = 0.8; all words: 1. Their mean is 0.9.
    assert json.loads((tmp_path / "rouge.json").read_text())["this run"]["rouge1"] == pytest.approx(90)
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_report_without_losses(tmp_path):
    done = report(tmp_path, TRAINING)
    assert done.returncode == 1
    assert "has none: ['held out']" in done.stderr
    assert "Traceback" not in done.stderr
