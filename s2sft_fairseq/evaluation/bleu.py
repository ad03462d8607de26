"""BLEU by sacreBLEU, and as fairseq prints it; BLEU and Distinct of dialogue, as ERNIE-GEN and PLATO compute them.

BLEU-1 and BLEU-2 of dialogue are means of NLTK's sentence BLEU with its smoothing method 7 (Chen and Cherry 2014). They
are not comparable to a corpus BLEU, and can exceed 1: an answer that equals its reference has a BLEU-1 of 4/3.
Distinct-1 and Distinct-2 (Li et al. 2016) are the number of different n-grams in all hypotheses, divided by the number
of all their n-grams. Spaces separate words.
"""

import math
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import TYPE_CHECKING

import numpy as np

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.evaluation.statistics import Means, Measured, Statistics, Sums, optional_module, tool
from s2sft_fairseq.progress import bar, step

if TYPE_CHECKING:
    from sacrebleu.metrics import BLEU
    from sacrebleu.metrics.bleu import BLEUScore


def corpus_bleu(examples: Sequence[Example], settings: Settings) -> tuple["BLEUScore", str]:
    """Return sacreBLEU's score, with all references of each example, and its signature.

    Raises:
        UserError: `sacrebleu` is not installed, or has no such tokenizer.
    """
    bleu = _metric(settings)
    most = max(len(example.references) for example in examples)
    padded = [[*example.references, *[None] * (most - len(example.references))] for example in examples]
    references = [list(column) for column in zip(*padded, strict=True)]  # [R, N]
    with step(f"BLEU of {len(examples):,} texts"):
        return bleu.corpus_score([example.hypothesis for example in examples], references), str(bleu.get_signature())


def sacrebleu(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute corpus BLEU.

    Raises:
        UserError: `sacrebleu` is not installed, or has no such tokenizer.
    """
    corpus, signature = corpus_bleu(examples, settings)
    bleu = _metric(settings, effective_order=True)  # changes neither the lengths nor the matches
    shown = bar(examples, "BLEU", " texts")
    sentences = [bleu.sentence_score(example.hypothesis, list(example.references)) for example in shown]
    counts = [(one.sys_len, one.ref_len, *one.counts, *one.totals) for one in sentences]
    orders = len(corpus.counts)

    def score(sums: np.ndarray) -> dict[str, float]:
        system, reference, *matches = sums.tolist()
        method = bleu.smooth_method
        return {"BLEU": bleu.compute_bleu(matches[:orders], matches[orders:], system, reference, method).score}

    return Measured(Sums(counts, score), f"tool:sacrebleu|{signature}")


def fairseq_bleu(hypotheses: Sequence[str], references: Sequence[str], order: int = 4, *, smooth: bool = False) -> str:
    """Return the line that ``fairseq-score`` prints: the score, its precisions and lengths in words.

    Spaces separate words. As in fairseq/scoring/bleu.py, an unknown word of a reference matches nothing, and an
    empty text is one word.

    Args:
        hypotheses: one for each reference.
        references: one for each hypothesis.
        order: length of the longest n-grams, 1 to 4.
        smooth: add one match to each order but the first, as fairseq does for single sentences.

    Raises:
        UserError: if `sacrebleu` is not installed.
    """
    sacre = optional_module("sacrebleu", "sacrebleu", "sacrebleu").BLEU(tokenize="none", force=True)
    texts = [text.strip() or "</s>" for text in hypotheses]
    golden = [" ".join("\0" if word == "<unk>" else word for word in text.split()) or "</s>" for text in references]
    found = sacre.corpus_score(texts, [golden])
    counts = list(zip(found.counts, found.totals, strict=True))[:order]
    if smooth:
        counts[1:] = [(match + 1, total + 1) for match, total in counts[1:]]
    precisions = [match / total if total else 0.0 for match, total in counts]
    brevity = min(1.0, math.exp(1 - found.ref_len / found.sys_len))
    mean = math.exp(sum(map(math.log, precisions)) / order) if all(precisions) else 0.0
    return (
        f"BLEU{order} = {100 * brevity * mean:.2f}, {'/'.join(f'{100 * value:.1f}' for value in precisions)} "
        f"(BP={brevity:.3f}, ratio={found.sys_len / found.ref_len:.3f}, "
        f"syslen={found.sys_len}, reflen={found.ref_len})"
    )


def _metric(settings: Settings, *, effective_order: bool = False) -> "BLEU":
    bleu = optional_module("sacrebleu", "sacrebleu", "sacrebleu").BLEU
    tokenizer = settings.bleu_tokenize
    if tokenizer not in bleu.TOKENIZERS:
        raise UserError(f"--bleu-tokenize must be one of {', '.join(bleu.TOKENIZERS)}, but is {tokenizer}")
    # `lowercase` is set even though the texts already are in lower case: it is part of the signature.
    # `force` turns off the warning that texts look tokenized.
    return bleu(
        lowercase=settings.lowercase, tokenize=tokenizer, effective_order=effective_order, force=tokenizer == "none"
    )


_WEIGHTS = {"BLEU-1": (1, 0, 0, 0), "BLEU-2": (0.5, 0.5, 0, 0)}


def dialogue_bleu(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute the mean sentence BLEU-1 and BLEU-2.

    Raises:
        UserError: `nltk` is not installed.
    """
    nltk = optional_module("nltk.translate.bleu_score", "nltk", "dialogue_bleu")
    smoothing = nltk.SmoothingFunction().method7
    values: dict[str, list[float]] = {name: [] for name in _WEIGHTS}
    for example in bar(examples, "dialogue BLEU", " texts"):
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

    A bootstrap resample repeats examples and so n-grams: its Distinct is lower, and gives no interval of the score.
    """

    resampling = False

    def __init__(self, texts: Sequence[Sequence[str]]) -> None:
        self.ngrams = {"Distinct-1": texts, "Distinct-2": [list(pairwise(words)) for words in texts]}

    def over(self, chosen: np.ndarray) -> dict[str, float]:
        """Return Distinct-1 and Distinct-2 over the chosen examples, see `Statistics.over`."""
        shares = {}
        for name, of_examples in self.ngrams.items():
            ngrams = list(chain.from_iterable(of_examples[number] for number in chosen.tolist()))
            shares[name] = 100 * len(set(ngrams)) / max(1, len(ngrams))
        return shares
