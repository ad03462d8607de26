"""Scores of question generation equal pycocoevalcap's with the inputs of qgevalcap."""

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
    """References and hypotheses by source, in the form in which qgevalcap's `eval` passes them."""
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


@pytest.fixture(scope="module")
def process():
    """One METEOR process for all tests, because it loads its paraphrases."""
    from pycocoevalcap.meteor.meteor import Meteor

    return Meteor()


@pytest.fixture
def one_process(process, monkeypatch):
    from pycocoevalcap.meteor import meteor as module

    monkeypatch.setattr(module, "Meteor", lambda: process)


def compared(process, pairs):
    """Return pycocoevalcap's METEOR for pairs of hypothesis and reference: of all, and of each."""
    hypotheses, references = ({number: [texts[side]] for number, texts in enumerate(pairs)} for side in (0, 1))
    return process.compute_score(references, hypotheses)


@needs_java
@pytest.mark.process
def test_meteor_of_a_corpus_with_an_equal_pair(process, one_process):
    pairs = [
        ("who wrote the book ?", "who wrote the book ?"),
        ("what is the name of the tall red house ?", "what was the name of the red house in the town ?"),
    ]
    measured = meteor([Example(hypothesis, (reference,)) for hypothesis, reference in pairs], SETTINGS)
    assert round(over(measured, 0, 1), 2) == 43.28
    assert over(measured, 0, 1) == pytest.approx(100 * compared(process, pairs)[0], abs=1e-9)


@needs_java
@pytest.mark.process
def test_meteor_of_questions(process, one_process):
    """Equal pairs, reordered ones, pairs that match by stems only, and pairs in which all of one side matches."""
    word = ["who", "wrote", "the", "old", "books", "about", "rivers", "?"]
    pairs = [("who writes the book ?", "who wrote the books ?"), ("?", "?"), ("a", "b"), ("", "who ?")]
    pairs += [(" ".join(word[:end]), " ".join(word)) for end in range(1, 9)]
    pairs += [(" ".join(word[start:] + word[:start]), " ".join(word)) for start in range(1, 8)]
    measured = meteor([Example(hypothesis, (reference,)) for hypothesis, reference in pairs], SETTINGS)
    everything, single = compared(process, pairs)
    assert over(measured, *range(len(pairs))) == pytest.approx(100 * everything, abs=1e-9)
    for number, expected in enumerate(single):
        assert over(measured, number) == pytest.approx(100 * expected, abs=1e-9)
    drawn = [0, 5, 11, 11, 3, 18, 11]
    again = compared(process, [pairs[number] for number in drawn])[0]
    assert over(measured, *drawn) == pytest.approx(100 * again, abs=1e-9)


@needs_java
@pytest.mark.process
def test_meteor(fed, process, one_process):
    score, single = process.compute_score(*fed)
    odd = [Example("", ("a cat",)), Example("a ||| cat", ("a cat",)), Example("a cat\nsat", ("a cat\nsat",))]
    measured = meteor([*EXAMPLES, *odd], SETTINGS)
    assert over(measured, 0, 1, 2) == pytest.approx(100 * score)
    for number in range(3):
        assert over(measured, number) == pytest.approx(100 * single[number])
    assert over(measured, 0, 1, 1, 2) != over(measured, 0, 1, 2)
    assert over(measured, 3) == 0
    assert over(measured, 4) == over(measured, 5) == pytest.approx(100)
    assert measured.signature.endswith("|meteor:1.5|lang:en|norm:yes|chunks:corpus")


def test_meteor_without_java(monkeypatch):
    monkeypatch.setattr(coco.shutil, "which", lambda name: None)
    with pytest.raises(UserError) as error:
        meteor(EXAMPLES, SETTINGS)
    assert "needs Java 8 or later, but there is no command java: install it" in str(error.value)
    assert "--metrics coco_bleu coco_rouge" in str(error.value)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@needs_java
@pytest.mark.process
def test_meteor_that_stops(monkeypatch):
    from pycocoevalcap.meteor import meteor as module

    monkeypatch.setattr(module, "METEOR_JAR", "nothing.jar")
    with pytest.raises(UserError, match=r"METEOR stopped: .*nothing\.jar"):
        meteor(EXAMPLES, SETTINGS)
