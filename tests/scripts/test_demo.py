"""The report of the demo on what was generated."""

import json
import runpy
import shutil
from pathlib import Path

import pytest

from s2sft_fairseq.errors import UserError

SCRIPTS = Path(__file__).parents[2] / "scripts"
LOSSES = ('{"loss": "9.5", "num_updates": "25"}', '{"valid_loss": "8.5", "valid_num_updates": "25"}')


@pytest.fixture
def report(tmp_path):
    """Report on two texts, with this log."""
    (tmp_path / "results").write_text("S-1\tsource\nD-1\t-0.5\tthe second\nD-0\t-0.25\tthe first one\nGenerate test\n")
    (tmp_path / "test.src").write_text("the first body\nanother body\n")
    (tmp_path / "test.tgt").write_text("the first\nthe second\n")
    demo = runpy.run_path(str(SCRIPTS / "demo.py"))

    def run(log):
        (tmp_path / "train.log").write_text(log)
        demo["report"](tmp_path / "results", tmp_path, tmp_path, "own-default")

    return run


def test_report(report, tmp_path, capsys):
    report("\n".join(LOSSES))
    assert "generated  the first one" in capsys.readouterr().out
    # 2 of 3 words and 2 of 2: F1 = 0.8; all words: 1. Their mean is 0.9.
    assert json.loads((tmp_path / "rouge.json").read_text())["this run"]["rouge1"] == pytest.approx(90)
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_report_without_losses(report):
    with pytest.raises(UserError, match=r"has none: \['held out'\]"):
        report(LOSSES[0])


def test_help(run_process):
    done = run_process(shutil.which("bash"), SCRIPTS / "demo.sh", "--help")
    assert done.stdout.startswith("The main job from beginning to end") and "--from-scratch" in done.stdout
