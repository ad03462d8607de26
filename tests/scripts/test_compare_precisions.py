"""scripts/compare_precisions.py: the losses of its logs, and the table."""

import runpy
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def compare(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))  # it imports another script
    return runpy.run_path(str(SCRIPTS / "compare_precisions.py"))


def test_losses_of_a_log(compare, tmp_path):
    log = tmp_path / "train.log"
    log.write_text('a line\n{"loss": "9.5", "num_updates": "20"}\n{"valid_loss": "8.5", "valid_num_updates": "25"}\n')
    assert compare["read_losses"](log) == {"training": [9.5], "held out": [8.5]}


def test_table(compare):
    curves = {
        ("float32", 1): {"training": [9.0, 7.0], "held out": [8.0, 6.0]},
        ("bfloat16", 1): {"training": [9.1, 7.3], "held out": [8.0, 6.2]},
        ("float32", 2): {"training": [8.0, 5.0], "held out": [8.0, 7.0]},
        ("bfloat16", 2): {"training": [8.0, 5.0], "held out": [8.0, 7.0]},
    }
    rows = [line.strip("| ").split(" | ") for line in compare["table"](curves).splitlines()]
    assert ["float32", "6.50 (6.00 to 7.00)"] in rows and ["bfloat16", "6.60 (6.20 to 7.00)"] in rows
    assert ["one seed, float32 and bfloat16", "0.1000"] in rows and ["float32, two seeds", "1.5000"] in rows
