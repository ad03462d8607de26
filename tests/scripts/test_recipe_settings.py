"""Single settings of recipes: how they score, and what a long source loses."""

import os
import subprocess
import sys

import numpy as np
import pytest
from recipe_array import RECIPES, recipe_array

from s2sft_fairseq.evaluation.tasks import TASKS
from s2sft_fairseq.tasks.layout import parse_source_fields


def option(words, name):
    return words[words.index(name) + 1] if name in words else None


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ((), None),
        (("--method", "infilling"), None),
        *((("--preset", preset), "100") for preset in ("base/cnndm", "large/cnndm", "large_430g/cnndm")),
        (("--preset", "paper/large/cnndm"), "100"),
    ],
)
def test_words_that_are_scored_of_a_summary(words, kept):
    """ERNIE-GEN's evaluation keeps 100, that of s2s-ft 160, which the task has."""
    assert option(recipe_array("evaluate", "cnn_dailymail", *words), "--truncate") == kept


@pytest.mark.parametrize(
    ("task", "lead"), [("cnn_dailymail", "3-sentences"), ("xsum", "1-sentences"), ("gigaword", "8-words")]
)
def test_summaries_are_compared_with_a_lead(task, lead):
    assert option(recipe_array("evaluate", task), "--lead") == lead


def test_each_comparison_of_questions_has_its_name():
    names = {
        (): "squad-raw-official",
        ("--split", "reversed"): "squad-raw-reversed",
        ("--set", "tgt-test"): "nqg-tgt-test",
    }
    found = {words: option(recipe_array("evaluate", "squad_qg", *words), "--reference-variant") for words in names}
    assert found == names


@pytest.mark.parametrize("task", ["squad_qg", "xqg"])
def test_a_long_passage_leaves_the_answer_whole(task):
    truncation = option(recipe_array("layout", task), "--source-truncation")
    layout = {"source_segments": "0", "source_truncation": truncation or "right", "source_field_positions": "0"}
    passage, sep, answer = [1] * 500, 0, [2] * 20
    cut = parse_source_fields(layout, 0).cut(np.array([*passage, sep, *answer]), sep, 382)
    assert cut.tolist() == [1] * 361 + [sep] + answer


def test_russian_is_split_as_the_challenge_does(tmp_path):
    """With a package that is no dependency: a recipe asks for it before it begins."""
    words = ("--lang", "ru", "--updates", "1", "--dry-run")
    assert option(recipe_array("evaluate", "webnlg", *words), "--pretokenize") == "razdel"
    assert "nltk" in TASKS["webnlg"].pretokenize and "--pretokenize" not in recipe_array("evaluate", "webnlg")
    (tmp_path / "razdel.py").write_text("raise ImportError")
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(tmp_path)}
    command = ["bash", str(RECIPES / "webnlg.sh"), "--lang", "ru", "--raw", ".", "--smoke"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--lang ru is scored with the package razdel, which is not installed: pip install razdel" in done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name != "__pycache__"] == ["razdel.py"]
