"""BLEU by sacreBLEU; BLEU and Distinct of dialogue."""

import numpy as np
import pytest
import sacrebleu as library
from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.bleu import dialogue_bleu, distinct, sacrebleu
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.settings import Settings

EXAMPLES = [
    Example("The cat sat on the mat.", ("the cat sat on the mat.", "A cat sat on a mat.")),
    Example("a dog barks at me", ("a dog barks loudly at me",)),
    Example("no", ("not one word", "nothing", "none")),
]
STREAMS = [
    [EXAMPLES[0].references[0], EXAMPLES[1].references[0], EXAMPLES[2].references[0]],
    [EXAMPLES[0].references[1], None, EXAMPLES[2].references[1]],
    [None, None, EXAMPLES[2].references[2]],
]


@pytest.mark.parametrize("tokenizer", ["13a", "none", "char"])
def test_the_library_s_figure_and_signature(tokenizer):
    measured = sacrebleu(EXAMPLES, Settings(bleu_tokenize=tokenizer))
    metric = library.BLEU(tokenize=tokenizer)
    expected = metric.corpus_score([example.hypothesis for example in EXAMPLES], STREAMS).score
    assert measured.statistics.over(np.arange(3)) == {"BLEU": pytest.approx(expected, abs=1e-9)}
    assert measured.signature == f"tool:sacrebleu|{metric.get_signature()}"
    assert f"nrefs:var|case:mixed|eff:no|tok:{tokenizer}|" in measured.signature


def test_a_selection_of_the_examples():
    measured = sacrebleu(EXAMPLES, Settings())
    repeated = [EXAMPLES[0].hypothesis] * 2, [[EXAMPLES[0].references[0]] * 2, [EXAMPLES[0].references[1]] * 2]
    expected = library.corpus_bleu(*repeated).score
    assert measured.statistics.over(np.array([0, 0])) == {"BLEU": pytest.approx(expected, abs=1e-9)}


def test_the_signature_tells_of_lower_case():
    assert "|case:lc|" in sacrebleu(EXAMPLES, Settings(lowercase=True)).signature


def test_an_unknown_tokenizer():
    with pytest.raises(UserError, match=r"--bleu-tokenize must be one of none, .*13a.*, but is 14a"):
        sacrebleu(EXAMPLES, Settings(bleu_tokenize="14a"))


def test_distinct():
    # Words a b a, a b: 2 different ones of 5; pairs ab ba, ab: 2 of 3. Pairs do not cross lines.
    measured = distinct([Example("a b a", ("x",)), Example("a b", ("x",)), Example("", ("x",))], Settings())
    assert measured.statistics.over(np.arange(3)) == {"Distinct-1": 40, "Distinct-2": pytest.approx(200 / 3)}
    assert measured.statistics.over(np.array([2])) == {"Distinct-1": 0, "Distinct-2": 0}
    assert measured.statistics.over(np.array([1, 1])) == {"Distinct-1": 50, "Distinct-2": 50}


def test_bleu_is_the_mean_over_sentences():
    examples = [
        Example("i like red cars a lot", ("i like blue cars a lot",)),
        Example("yes i do have two dogs", ("no i have two cats", "i do not")),
    ]
    measured = dialogue_bleu(examples, Settings())
    smooth = SmoothingFunction().method7
    for name, weights in (("BLEU-1", (1, 0, 0, 0)), ("BLEU-2", (0.5, 0.5, 0, 0))):
        single = [
            sentence_bleu([text.split() for text in one.references], one.hypothesis.split(), weights, smooth)
            for one in examples
        ]
        assert measured.statistics.over(np.arange(2))[name] == pytest.approx(100 * np.mean(single))
    assert "level:sentence|smooth:method7" in measured.signature


def test_smoothing_goes_above_100():
    # Method 5 is the mean of three neighboring precisions, with p1 + 1 for "p0": (2 + 1 + 1) / 3.
    measured = dialogue_bleu([Example("i have two dogs", ("i have two dogs",))], Settings())
    assert measured.statistics.over(np.array([0]))["BLEU-1"] == pytest.approx(400 / 3)


@pytest.mark.parametrize("hypothesis", ["", "yes", "yes i", "no"])
def test_short_answers_have_a_score(hypothesis):
    found = dialogue_bleu([Example(hypothesis, ("yes i do",))], Settings()).statistics.over(np.array([0]))
    assert all(0 <= score <= 400 / 3 for score in found.values())
    if hypothesis in ("", "no"):
        assert found == {"BLEU-1": 0, "BLEU-2": 0}
