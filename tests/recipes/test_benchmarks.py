"""Single settings of benchmarks: their scoring, and the truncation of a long source."""

import shlex
import sys

import numpy as np
import pytest
from called import call

from s2sft_fairseq.commands.recipe import open_recipe
from s2sft_fairseq.evaluation.settings import TASKS
from s2sft_fairseq.tasks.layout import parse_source_fields


def setting(name, task, *words):
    """Return a recipe's setting that holds the options of a command."""
    return shlex.split(getattr(open_recipe(task, words).settings, name))


def option(words, name):
    return words[words.index(name) + 1] if name in words else None


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ((), None),
        (("--method", "infilling"), None),
        *((("--preset", preset), "100") for preset in ("base/cnndm", "large/cnndm", "large_430g/cnndm")),
        (("--preset", "paper/large/cnndm"), "100"),
        (("--preset", "unilmv2/cnndm"), None),
    ],
)
def test_number_of_scored_words_of_a_summary(words, kept):
    """ERNIE-GEN's evaluation keeps 100; that of s2s-ft keeps 160, the default of the task."""
    assert option(setting("evaluation", "cnn_dailymail", *words), "--truncate") == kept


@pytest.mark.parametrize(
    ("task", "lead"), [("cnn_dailymail", "3-sentences"), ("xsum", "1-sentences"), ("gigaword", "8-words")]
)
def test_summaries_are_compared_with_a_lead(task, lead):
    assert option(setting("evaluation", task), "--lead") == lead


def test_each_comparison_of_questions_has_its_name():
    names = {
        (): "squad-raw-official",
        ("--split", "reversed"): "squad-raw-reversed",
        ("--set", "tgt-test"): "nqg-tgt-test",
    }
    found = {words: option(setting("evaluation", "squad_qg", *words), "--reference-variant") for words in names}
    assert found == names


@pytest.mark.parametrize("task", ["squad_qg", "xqg"])
def test_a_long_passage_leaves_the_answer_whole(task):
    truncation = option(setting("layout", task), "--source-truncation")
    layout = {"source_segments": "0", "source_truncation": truncation or "right", "source_field_positions": "0"}
    passage, sep, answer = [1] * 500, 0, [2] * 20
    cut = parse_source_fields(layout, 0).cut(np.array([*passage, sep, *answer]), sep, 382)
    assert cut.tolist() == [1] * 361 + [sep] + answer


def test_russian_is_split_as_the_challenge_does(tmp_path, monkeypatch):
    """It needs a package that is not required: a recipe asks for it before it starts."""
    words = ("--lang", "ru", "--dry-run")
    assert option(setting("evaluation", "webnlg", *words), "--pretokenize") == "razdel"
    assert "nltk" in TASKS["webnlg"].pretokenize and "--pretokenize" not in setting("evaluation", "webnlg")
    monkeypatch.setitem(sys.modules, "razdel", None)
    done = call(tmp_path, "recipe", "webnlg", "--lang", "ru", "--raw", ".", "--smoke")
    assert done.returncode == 2
    assert "--lang ru is scored with the package razdel, which is not installed: pip install razdel" in done.stderr
    assert list(tmp_path.iterdir()) == []
