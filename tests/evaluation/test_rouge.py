"""ROUGE by `rouge-score`."""

import logging

import numpy as np
import pytest

from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.rouge import rouge, scorer_module
from s2sft_fairseq.evaluation.settings import Settings


def scores(examples, **settings):
    measured = rouge(examples, Settings(**settings))
    return measured.statistics.over(np.arange(len(examples))), measured.signature


def test_by_hand():
    # Unigrams: 2 of 3 and 2 of 2; bigrams: 1 of 2 and 1 of 1. Subsequences of the second: b, of "b a" in "a b".
    found, _ = scores([Example("the first one", ("the first",)), Example("b a", ("a b",))])
    assert found["ROUGE-1"] == pytest.approx(100 * (0.8 + 1) / 2)
    assert found["ROUGE-2"] == pytest.approx(100 * (2 / 3 + 0) / 2)
    assert found["ROUGE-L"] == found["ROUGE-Lsum"] == pytest.approx(100 * (0.8 + 0.5) / 2)


def test_sentences_matter_to_lsum_alone():
    # As one sequence, "a b" and "c d" match in one order only; sentence by sentence, both do.
    found, _ = scores([Example("c d\na b", ("a b\nc d",))])
    assert found["ROUGE-L"] == 50
    assert found["ROUGE-Lsum"] == 100


def test_the_library_s_own_figures():
    examples = [Example("The dogs were running.", ("A dog runs",)), Example("nothing", ("at all\nof it",))]
    scorer = scorer_module().RougeScorer(["rouge1", "rougeLsum"], use_stemmer=True)
    for name, measure in (("ROUGE-1", "rouge1"), ("ROUGE-Lsum", "rougeLsum")):
        single = [scorer.score(example.references[0], example.hypothesis)[measure].fmeasure for example in examples]
        assert scores(examples)[0][name] == pytest.approx(100 * np.mean(single))


def test_stemming():
    example = [Example("dogs", ("dog",))]
    assert scores(example)[0]["ROUGE-1"] == 100
    assert scores(example, stem=False)[0]["ROUGE-1"] == 0


def test_several_references():
    # F1 against each: 1, 2/3 and 0.
    example = [Example("x y z", ("x y z", "x y q", "r s t"))]
    assert scores(example)[0]["ROUGE-1"] == pytest.approx(100)
    # Without the first: 2/3; without one of the others: 1.
    assert scores(example, multi_reference="jackknife")[0]["ROUGE-1"] == pytest.approx(100 * (2 / 3 + 1 + 1) / 3)
    two = [Example("x y z", ("x y z", "x y q"))]
    assert scores(two, multi_reference="jackknife")[0]["ROUGE-1"] == pytest.approx(100 * (2 / 3 + 1) / 2)


@pytest.mark.parametrize(("tokenizer", "expected"), [("ascii", 0), ("unicode", 100), ("space", 50)])
def test_tokenizers(tokenizer, expected):
    assert scores([Example("Привет, мир", ("привет мир",))], rouge_tokenizer=tokenizer)[0]["ROUGE-1"] == expected


def test_signatures():
    one, several = [Example("a", ("b",))], [Example("a", ("b", "c"))]
    version = "tool:rouge-score|version:0.1.2"
    assert scores(one)[1] == f"{version}|tok:ascii|stem:porter"
    assert scores(one, stem=False)[1] == f"{version}|tok:ascii|stem:no"
    assert scores(one, rouge_tokenizer="unicode")[1] == f"{version}|tok:unicode|stem:no"
    assert scores(several, multi_reference="jackknife")[1] == f"{version}|tok:ascii|stem:porter|multi:jackknife"


def test_the_log_is_left_alone():
    """Absl's handler would close the standard error together with itself."""
    scorer_module()
    assert not any("absl" in type(handler).__module__ for handler in logging.root.handlers)
