"""BLEU is sacreBLEU's, and so is what its counts add up to."""

import numpy as np
import pytest
import sacrebleu as library

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.bleu import sacrebleu
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


def test_a_choice_of_the_examples():
    measured = sacrebleu(EXAMPLES, Settings())
    repeated = [EXAMPLES[0].hypothesis] * 2, [[EXAMPLES[0].references[0]] * 2, [EXAMPLES[0].references[1]] * 2]
    expected = library.corpus_bleu(*repeated).score
    assert measured.statistics.over(np.array([0, 0])) == {"BLEU": pytest.approx(expected, abs=1e-9)}


def test_the_signature_tells_of_lower_case():
    assert "|case:lc|" in sacrebleu(EXAMPLES, Settings(lowercase=True)).signature


def test_an_unknown_tokenizer():
    with pytest.raises(UserError, match=r"--bleu-tokenize must be one of none, .*13a.*, but is 14a"):
        sacrebleu(EXAMPLES, Settings(bleu_tokenize="14a"))
