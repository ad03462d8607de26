"""ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum as F1, by `rouge-score`.

ROUGE-L takes a text as one sequence of words. ROUGE-Lsum unites the longest common subsequences of the sentences: it is
the ROUGE-L of ROUGE-1.5.5, and with it of the papers. Where texts have one sentence, the two are equal.
"""

import logging
import re
from collections.abc import Sequence
from types import ModuleType

import numpy as np

from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.packages import optional_module, tool
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.evaluation.statistics import Means, Measured

NAMES = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L", "rougeLsum": "ROUGE-Lsum"}
_WORD = re.compile(r"\w+")


def rouge(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute ROUGE.

    Raises:
        UserError: `rouge-score` is not installed.
    """
    module = scorer_module()
    if settings.rouge_tokenizer == "ascii":
        tokenizer = module.tokenizers.DefaultTokenizer(settings.stem)
    else:
        tokenizer = _Tokenizer(settings.rouge_tokenizer)
    scorer = module.RougeScorer(list(NAMES), tokenizer=tokenizer)
    values: dict[str, list[float]] = {name: [] for name in NAMES.values()}
    for example in examples:
        scores = [scorer.score(reference, example.hypothesis) for reference in example.references]
        for measure, name in NAMES.items():
            values[name].append(_combined([score[measure].fmeasure for score in scores], settings.multi_reference))
    stem = "porter" if settings.stem and settings.rouge_tokenizer == "ascii" else "no"
    multi = f"|multi:{settings.multi_reference}" if max(len(example.references) for example in examples) > 1 else ""
    return Measured(Means(values), f"{tool('rouge-score')}|tok:{settings.rouge_tokenizer}|stem:{stem}{multi}")


def scorer_module() -> ModuleType:
    """Import `rouge-score`.

    absl's logging, which it imports, puts a handler on the root logger; whoever sets up the log anew closes it, and it
    closes the stream that was the standard error when it was made.

    Raises:
        UserError: it is not installed.
    """
    handlers = logging.root.handlers[:]
    module = optional_module("rouge_score.rouge_scorer", "rouge-score", "rouge")
    logging.root.handlers[:] = handlers
    return module


def _combined(scores: Sequence[float], multi_reference: str) -> float:
    """Return the score against several references [R] together.

    `jackknife`: the mean over the references of the best score against the others (Lin 2004, section 2.1; GEM).
    """
    if multi_reference == "best" or len(scores) == 1:
        return max(scores)
    ranked = sorted(scores, reverse=True)
    return float(np.mean([ranked[1]] + ranked[:1] * (len(ranked) - 1)))


class _Tokenizer:
    """Words for ROUGE where its own tokenizer, which knows a-z and 0-9 only, would drop most of the text."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def tokenize(self, text: str) -> list[str]:
        return text.split() if self.kind == "space" else _WORD.findall(text.lower())
