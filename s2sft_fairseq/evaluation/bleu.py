"""BLEU by sacreBLEU, with sacreBLEU's own signature."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.packages import optional_module
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.evaluation.statistics import Measured, Sums

if TYPE_CHECKING:
    from sacrebleu.metrics import BLEU
    from sacrebleu.metrics.bleu import BLEUScore


def corpus_bleu(examples: Sequence[Example], settings: Settings) -> tuple["BLEUScore", str]:
    """Return sacreBLEU's score, against all references of an example at once, and its signature.

    Raises:
        UserError: `sacrebleu` is not installed, or has no such tokenizer.
    """
    bleu = _metric(settings)
    most = max(len(example.references) for example in examples)
    padded = [[*example.references, *[None] * (most - len(example.references))] for example in examples]
    references = [list(column) for column in zip(*padded, strict=True)]  # [R, N]
    return bleu.corpus_score([example.hypothesis for example in examples], references), str(bleu.get_signature())


def sacrebleu(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute corpus BLEU.

    Raises:
        UserError: `sacrebleu` is not installed, or has no such tokenizer.
    """
    corpus, signature = corpus_bleu(examples, settings)
    bleu = _metric(settings, effective_order=True)  # lengths and matches of a sentence are the same without
    sentences = [bleu.sentence_score(example.hypothesis, list(example.references)) for example in examples]
    counts = [(one.sys_len, one.ref_len, *one.counts, *one.totals) for one in sentences]
    orders = len(corpus.counts)

    def score(sums: np.ndarray) -> dict[str, float]:
        system, reference, *matches = sums.tolist()
        method = bleu.smooth_method
        return {"BLEU": bleu.compute_bleu(matches[:orders], matches[orders:], system, reference, method).score}

    return Measured(Sums(counts, score), f"tool:sacrebleu|{signature}")


def _metric(settings: Settings, *, effective_order: bool = False) -> "BLEU":
    bleu = optional_module("sacrebleu", "sacrebleu", "sacrebleu").BLEU
    tokenizer = settings.bleu_tokenize
    if tokenizer not in bleu.TOKENIZERS:
        raise UserError(f"--bleu-tokenize must be one of {', '.join(bleu.TOKENIZERS)}, but is {tokenizer}")
    # `lowercase`, of texts that are lower-cased already too, for the signature; `force`: no warning of tokenized text
    return bleu(
        lowercase=settings.lowercase, tokenize=tokenizer, effective_order=effective_order, force=tokenizer == "none"
    )
