"""scripts/compare_methods.py: a recipe for each method and seed, and the table of the scores."""

import runpy
from pathlib import Path

import pytest
from called import call_script
from raw_corpora import RAW

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "compare_methods.py"


@pytest.mark.process
def test_methods_compared(tmp_path):
    RAW["e2e"](tmp_path / "raw")
    words = ("e2e", "--output", "out", "--seeds", 1, "--methods", "infilling", "pseudo_masked", "--")
    done = call_script(SCRIPT, tmp_path, *words, "--raw", "raw", "--smoke", "--cpu", "--workers", 1, "--held-out", 3)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    table = (tmp_path / "out" / "comparison.md").read_text()
    assert table in done.stdout
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


def test_no_such_recipe_to_compare(tmp_path):
    done = call_script(SCRIPT, tmp_path, "recipe2", "--output", "out")
    assert done.returncode == 2
    assert "recipe2" in done.stderr and "cnn_dailymail" in done.stderr and "glue" not in done.stderr
