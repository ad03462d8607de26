"""Question generation's figures are pycocoevalcap's when it is fed as qgevalcap does."""

import shutil

import numpy as np
import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation import coco
from s2sft_fairseq.evaluation.coco import coco_bleu, coco_rouge, meteor
from s2sft_fairseq.evaluation.examples import Example, group_by_source
from s2sft_fairseq.evaluation.settings import Settings

pytest.importorskip("pycocoevalcap.bleu.bleu", reason="pycocoevalcap is not installed")
needs_java = pytest.mark.skipif(shutil.which("java") is None, reason="Java is not installed")

LINES = [
    ("what did the queen wear ?", "what was the queen wearing ?", "the queen wore a red dress ."),
    ("who wore a dress of red color ?", "who wore a red dress ?", "the queen wore a red dress ."),
    ("when was the old castle built in scotland ?", "when was the castle built ?", "it was built in 1200 ."),
    ("where ?", "where does the river end ?", "it ends in the sea ."),
]
EXAMPLES = group_by_source([Example(hypothesis, (reference,), source) for hypothesis, reference, source in LINES])
SETTINGS = Settings()


@pytest.fixture(scope="module")
def fed():
    """References and hypotheses by source, as qgevalcap's `eval` makes them."""
    references, hypotheses = {}, {}
    for hypothesis, reference, source in LINES:
        hypotheses[source] = [hypothesis]
        references.setdefault(source, []).append(reference)
    assert [len(texts) for texts in references.values()] == [2, 1, 1]
    return references, hypotheses


def over(measured, *chosen):
    (value,) = measured.statistics.over(np.array(chosen)).values()
    return value


def test_bleu(fed, capsys):
    from pycocoevalcap.bleu.bleu import Bleu

    expected = Bleu(4).compute_score(*fed, verbose=0)[0][3]
    assert over(coco_bleu(EXAMPLES, SETTINGS), 0, 1, 2) == pytest.approx(100 * expected, abs=1e-6)
    assert capsys.readouterr().out == ""


def test_bleu_of_a_resample(fed):
    from pycocoevalcap.bleu.bleu import Bleu

    keys = list(fed[0])
    twice = [{key + suffix: texts[key] for key in keys[:2] for suffix in ("", "'")} for texts in fed]
    expected = Bleu(4).compute_score(*twice, verbose=0)[0][3]
    assert over(coco_bleu(EXAMPLES, SETTINGS), 0, 1, 1, 0) == pytest.approx(100 * expected, abs=1e-6)


def test_rouge(fed):
    from pycocoevalcap.rouge.rouge import Rouge

    mean, single = Rouge().compute_score(*fed)
    measured = coco_rouge(EXAMPLES, SETTINGS)
    assert over(measured, 0, 1, 2) == pytest.approx(100 * mean)
    assert over(measured, 2) == pytest.approx(100 * single[2])


@pytest.mark.slow  # METEOR reads its paraphrases, twice
@needs_java
def test_meteor(fed):
    from pycocoevalcap.meteor.meteor import Meteor

    score, single = Meteor().compute_score(*fed)
    odd = [Example("", ("a cat",)), Example("a ||| cat", ("a cat",)), Example("a cat\nsat", ("a cat\nsat",))]
    measured = meteor([*EXAMPLES, *odd], SETTINGS)
    assert over(measured, 0, 1, 2) == pytest.approx(100 * score)
    for number in range(3):
        assert over(measured, number) == pytest.approx(100 * single[number])
    assert over(measured, 0, 1, 1, 2) != over(measured, 0, 1, 2)
    assert over(measured, 3) == 0
    assert over(measured, 4) == over(measured, 5) == pytest.approx(100)
    assert measured.signature.endswith("|meteor:1.5|lang:en|norm:yes")


def test_meteor_without_java(monkeypatch):
    monkeypatch.setattr(coco.shutil, "which", lambda name: None)
    with pytest.raises(UserError) as error:
        meteor(EXAMPLES, SETTINGS)
    assert "needs Java 8 or later, but there is no command java: install it" in str(error.value)
    assert "--metrics coco_bleu coco_rouge" in str(error.value)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@needs_java
def test_meteor_that_stops(monkeypatch):
    from pycocoevalcap.meteor import meteor as module

    monkeypatch.setattr(module, "METEOR_JAR", "nothing.jar")
    with pytest.raises(UserError, match=r"METEOR stopped: .*nothing\.jar"):
        meteor(EXAMPLES, SETTINGS)
