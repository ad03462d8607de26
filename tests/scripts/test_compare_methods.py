"""scripts/compare_methods.py: a recipe for each method and seed, and the table of the scores."""

import runpy
import subprocess
import sys
from pathlib import Path

from raw_corpora import RAW

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "compare_methods.py"


def test_methods_compared(tmp_path, monkeypatch, capsys):
    RAW["e2e"](tmp_path / "raw")
    compare = runpy.run_path(str(SCRIPT))
    words = ("e2e", "--output", "out", "--seeds", 1, "--methods", "infilling", "pseudo_masked", "--")
    options = ("--raw", "raw", "--smoke", "--cpu", "--workers", 1, "--held-out", 3)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["compare_methods.py", *map(str, [*words, *options])])
    compare["main"]()
    table = (tmp_path / "out" / "comparison.md").read_text()
    assert table in capsys.readouterr().out
    head, rule, *rows = table.splitlines()
    assert head.startswith("| method | seeds | BLEU | ROUGE-1 |")
    assert rule.count("---") == head.count("|") - 1
    assert {row.split(" | ")[0] for row in rows} == {"| infilling", "| pseudo_masked"}
    assert "infilling-seed1" in {path.name for path in (tmp_path / "out").iterdir()}


def test_table_of_methods():
    compare = runpy.run_path(str(SCRIPT))
    runs = {"causal": [{"BLEU": 1.0, "F1": 5.0}, {"BLEU": 2.0, "F1": 4.0}], "masked": [{"BLEU": 3.0, "F1": 1.0}]}
    assert compare["as_table"](runs).splitlines() == [
        "| method | seeds | BLEU | F1 |",
        "| --- | --- | --- | --- |",
        "| masked | 1 | 3.00 (3.00 to 3.00) | 1.00 (1.00 to 1.00) |",
        "| causal | 2 | 1.50 (1.00 to 2.00) | 4.50 (4.00 to 5.00) |",
    ]


def test_no_such_recipe_to_compare():
    command = [sys.executable, str(SCRIPT), "recipe2", "--output", "out"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "recipe2" in done.stderr and "cnn_dailymail" in done.stderr and "glue" not in done.stderr
