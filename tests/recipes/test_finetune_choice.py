"""Metrics, searches and options of evaluation."""

import json

import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.recipes import finetune_choice
from s2sft_fairseq.recipes.finetune_choice import (
    METRICS,
    computed,
    evaluation_options,
    held_out_losses,
    metric_problems,
    search_choices,
)


def test_metrics():
    assert computed("rouge-l") == computed("loss") == ["rouge", "sacrebleu"]
    assert computed("meteor") == ["rouge", "sacrebleu", "meteor"]
    assert METRICS["rouge-2"].of({"ROUGE-1": 1.0, "ROUGE-2": 2.0}) == 2.0
    assert list(metric_problems("bleu")) == []


def test_a_missing_package_is_reported_before_the_training(monkeypatch):
    def missing(examples, settings):
        raise UserError("needs a package")

    monkeypatch.setitem(finetune_choice.ALL, "sacrebleu", missing)
    assert list(metric_problems("rouge-l")) == ["needs a package"]


def test_searches():
    found = [choose({"beam": 4, "lenpen": 0.6}) for choose in search_choices(4, 7)]
    assert found == [
        {"beam": 4, "lenpen": 1.0},
        {"beam": 4, "lenpen": 0.6},
        {"beam": 4, "lenpen": 1.6},
        {"beam": 4, "lenpen": 0.6, "no_repeat_ngram_size": 3},
        {"beam": 4, "lenpen": 0.6, "min_len": 7},
    ]
    assert [choose({"beam": 1}) for choose in search_choices(1, 1)] == [{"beam": 1, "no_repeat_ngram_size": 3}]


def test_held_out_losses(tmp_path):
    records = [{"num_updates": "1", "loss": "9"}, {"valid_loss": "8.5", "valid_num_updates": "1"},
               {"valid_loss": "7", "valid_num_updates": "2"}]  # fmt: skip
    (tmp_path / "log").write_text("".join(f"{json.dumps(record)}\n" for record in ["text", *records]))
    assert held_out_losses(tmp_path / "log") == {1: 8.5, 2: 7.0}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("plain words", []),
        ("one caf\u00e9 of many, many more words that are plain ASCII, as they are in English", []),
        ("\u043f\u0440\u0438\u0432\u0435\u0442 world", ["--rouge-tokenizer", "unicode"]),
        ("\u4eca\u5929\u5929\u6c14\u5f88\u597d ok", ["--characters", "--rouge-tokenizer", "space"]),
        ("123", []),
    ],
)
def test_scripts(tmp_path, text, words):
    (tmp_path / "valid.tgt").write_text(f"{text}\n")
    (tmp_path / "dict.txt").write_text("[CLS] 1\nword 1\nWord 1\n")
    assert evaluation_options(tmp_path / "valid.tgt", tmp_path / "dict.txt") == ["--task", "rouge", *words]
    # Like BERT's lower-cased vocabulary, which has a capital that no text loses: the sign of the real numbers.
    (tmp_path / "dict.txt").write_text("[CLS] 1\n<Name> 1\nword 1\nℝ 1\n##ℝ 1\n", encoding="utf-8")
    uncased = evaluation_options(tmp_path / "valid.tgt", tmp_path / "dict.txt")
    assert uncased == ["--task", "rouge", "--lowercase", *words]
