"""The log of a training: its lines, progress, and the plot of its losses."""

import json
import subprocess
import sys
import time

import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.recipes.training_log import Progress, parse, plot, shortened

TRAINING = '{"epoch": 1, "loss": "9.5", "num_updates": "25", "lr": "0.1"}'
HELD_OUT = '{"epoch": 1, "valid_loss": "8.5", "valid_num_updates": "25"}'
END_OF_EPOCH = '{"epoch": 1, "train_loss": "9.1", "train_num_updates": "50"}'


def test_lines_of_the_output_and_of_the_log_file():
    for prefix in ("", "2026-11-20 12:00:00 | INFO | train_inner | "):
        assert parse(prefix + TRAINING) == ("training", json.loads(TRAINING))
        kind, record = parse(prefix + HELD_OUT)
        assert (kind, record["loss"], record["num_updates"]) == ("held out", "8.5", "25")
        assert parse(prefix + END_OF_EPOCH) is None
    assert parse("2026-11-20 | INFO | fairseq_cli.train | {'_name': None, 'common': {\"x") is None
    assert parse("no numbers") is None


def test_progress():
    shown = map(Progress(50), ["noise\n", TRAINING, HELD_OUT, "x | WARNING | y | 3 sources are cut\n"])
    assert list(shown) == [
        "",
        "  update 25/50: training loss 9.5\n",
        "  update 25/50: held out loss 8.5\n",
        "  x | WARNING | y | 3 sources are cut\n",
    ]
    assert Progress(None)(TRAINING) == "  update 25: training loss 9.5\n"


@pytest.mark.process
def test_output_of_several_processes(capfd):
    """Like the ranks of a training; a process that continues to run does not stop the training."""
    code = "import os, time; os.write(1, b'child\\n'); time.sleep(30)"
    printed = []
    with pytest.raises(KeyboardInterrupt), shortened(lambda line: printed.append(line) or f"({line.strip()})\n"):
        child = subprocess.Popen([sys.executable, "-c", code])
        while "child\n" not in printed:
            time.sleep(0.01)
        print("parent", end="")
        raise KeyboardInterrupt
    child.kill()
    child.wait()
    assert printed == ["child\n", "parent\n"]
    assert capfd.readouterr().out == "(child)\n(parent)\n"


def test_plot(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("\n".join(["noise", TRAINING, HELD_OUT, END_OF_EPOCH]))
    plot(log, tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    log.write_text(TRAINING)
    with pytest.raises(UserError, match=r"has none: \['held out'\]"):
        plot(log, tmp_path / "loss.png")
