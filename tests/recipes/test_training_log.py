"""The progress of a training."""

import subprocess
import sys
import time

import pytest

from s2sft_fairseq.recipes.training_log import Progress, shortened

TRAINING = '{"epoch": 1, "loss": "9.5", "num_updates": "25", "lr": "0.1"}'
HELD_OUT = '{"epoch": 1, "valid_loss": "8.5", "valid_num_updates": "25"}'


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
