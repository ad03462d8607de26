"""BLEU-1, BLEU-2, Distinct-1 and Distinct-2 as ERNIE-GEN and PLATO score Persona-Chat.

This BLEU is the mean over sentences of NLTK's, smoothed by its method 7 (Chen and Cherry 2014). It is not to be
compared with a corpus BLEU, and is no share: the smoothing gives 4/3 to BLEU-1 of an answer that equals its reference.
Distinct (Li et al. 2016) is the number of different n-grams in all hypotheses as a share of all their n-grams. Words
are what stands between spaces.
"""

from collections.abc import Sequence
from itertools import chain, pairwise

import numpy as np

from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.packages import optional_module, tool
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.evaluation.statistics import Means, Measured, Statistics

_WEIGHTS = {"BLEU-1": (1, 0, 0, 0), "BLEU-2": (0.5, 0.5, 0, 0)}


def dialogue_bleu(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute the mean sentence BLEU-1 and BLEU-2.

    Raises:
        UserError: `nltk` is not installed.
    """
    nltk = optional_module("nltk.translate.bleu_score", "nltk", "dialogue_bleu")
    smoothing = nltk.SmoothingFunction().method7
    values: dict[str, list[float]] = {name: [] for name in _WEIGHTS}
    for example in examples:
        references = [reference.split() for reference in example.references]
        for name, weights in _WEIGHTS.items():
            score = nltk.sentence_bleu(references, example.hypothesis.split(), weights, smoothing)
            values[name].append(float(score))
    return Measured(Means(values), f"{tool('nltk')}|level:sentence|smooth:method7|tok:space")


def distinct(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute Distinct-1 and Distinct-2."""
    words = [example.hypothesis.split() for example in examples]
    return Measured(Distinct(words), "tool:s2sft|level:corpus|tok:space")


class Distinct(Statistics):
    """The n-grams of each example.

    A resample repeats examples, and with them n-grams: its Distinct is lower, and says nothing about the score.
    """

    resampling = False

    def __init__(self, texts: Sequence[Sequence[str]]) -> None:
        self.ngrams = {"Distinct-1": texts, "Distinct-2": [list(pairwise(words)) for words in texts]}

    def over(self, chosen: np.ndarray) -> dict[str, float]:
        shares = {}
        for name, of_examples in self.ngrams.items():
            ngrams = list(chain.from_iterable(of_examples[number] for number in chosen.tolist()))
            shares[name] = 100 * len(set(ngrams)) / max(1, len(ngrams))
        return shares
