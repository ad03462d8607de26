"""BLEU-4, METEOR 1.5 and ROUGE-L of question generation, by the code of the COCO caption evaluation.

qgevalcap (Du et al. 2017) is this code. UniLM, s2s-ft and ERNIE-GEN use it, XNLG does through nlg-eval. `pycocoevalcap`
is its Python 3 version. Spaces separate words. Unlike the other metrics of this package, BLEU is not smoothed, and
ROUGE-L weights recall 1.44 times as much as precision, takes the best precision and the best recall over the
references, and does not stem.
"""

import shutil
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.evaluation.statistics import Means, Measured, Sums, optional_module, tool
from s2sft_fairseq.progress import bar

_PACKAGE = "pycocoevalcap"
# Indices into METEOR's counts of a segment: words of hypothesis and reference, chunks, words that match.
_LENGTHS, _CHUNKS, _MATCHES = slice(0, 2), 20, slice(21, 23)


def coco_bleu(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute corpus BLEU-4.

    Raises:
        UserError: `pycocoevalcap` is not installed.
    """
    scorer_class = optional_module("pycocoevalcap.bleu.bleu_scorer", _PACKAGE, "coco_bleu").BleuScorer
    scorer = scorer_class(n=4)
    for example in bar(examples, "BLEU-4", " texts"):
        scorer += (_line(example.hypothesis), [_line(reference) for reference in example.references])
    counts = []
    for one in scorer.ctest:
        _, closest = min((abs(length - one["testlen"]), length) for length in one["reflen"])
        counts.append((one["testlen"], closest, *one["guess"], *one["correct"]))

    def score(sums: np.ndarray) -> dict[str, float]:
        system, reference, *matches = sums.tolist()
        total = scorer_class(n=4)
        total.crefs = [None]
        total.ctest = [{"testlen": system, "reflen": [reference], "guess": matches[:4], "correct": matches[4:]}]
        return {"BLEU-4": 100 * total.compute_score(option="closest")[0][3]}

    return Measured(Sums(counts, score), f"{tool(_PACKAGE)}|tok:space|smooth:none")


def coco_rouge(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute the mean ROUGE-L.

    Raises:
        UserError: `pycocoevalcap` is not installed.
    """
    scorer = optional_module("pycocoevalcap.rouge.rouge", _PACKAGE, "coco_rouge").Rouge()
    values = [
        scorer.calc_score([_line(example.hypothesis)], [_line(reference) for reference in example.references])
        for example in bar(examples, "ROUGE-L", " texts")
    ]
    return Measured(Means({"ROUGE-L (COCO)": values}), f"{tool(_PACKAGE)}|tok:space|stem:no|beta:{scorer.beta}")


def meteor(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute METEOR 1.5 (English) over the corpus.

    Raises:
        UserError: `pycocoevalcap` or Java is not installed, or METEOR stopped.
    """
    module = optional_module("pycocoevalcap.meteor.meteor", _PACKAGE, "meteor")
    if shutil.which("java") is None:
        raise UserError(
            "--metrics meteor needs Java 8 or later, but there is no command java: install it (Debian: "
            "default-jre-headless), or leave METEOR out, as in --metrics coco_bleu coco_rouge"
        )
    process = _Meteor(module.Meteor())
    # Shown at once: Java starts.
    counts = [process.counts(example) for example in bar(examples, "METEOR", " texts", delay=0)]
    signature = f"{tool(_PACKAGE)}|meteor:1.5|lang:en|norm:yes|chunks:corpus"
    return Measured(Sums(counts, lambda sums: {"METEOR": 100 * process.score(sums)}), signature)


class _Meteor:
    """The METEOR process of `pycocoevalcap`."""

    def __init__(self, meteor: Any) -> None:
        self.meteor = meteor
        self.process = meteor.meteor_p

    def counts(self, example: Example) -> list[float]:
        """Return the counts [23] that METEOR adds up over a corpus.

        If hypothesis and reference match as one chunk, METEOR counts no chunk: the segment is not fragmented.
        """
        texts = [*example.references, example.hypothesis]
        counts = [float(word) for word in self._answer("SCORE", *map(_line, texts)).split()]
        if counts[_CHUNKS] == 1 and counts[_MATCHES] == counts[_LENGTHS]:
            counts[_CHUNKS] = 0.0
        return counts

    def score(self, sums: np.ndarray) -> float:
        """Return the score of summed counts."""
        self._answer("EVAL", " ".join(map(str, sums.tolist())))
        return float(self._line())  # the corpus score; the line before has the score of its only segment

    def _answer(self, command: str, *fields: str) -> str:
        # A field must not contain the separator of fields.
        line = " ||| ".join([command, *(field.replace("|||", "").replace("  ", " ") for field in fields)])
        with suppress(BrokenPipeError):  # the process stopped; `_line` reads its message
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        line = self.process.stdout.readline().decode()
        if not line:
            with suppress(BrokenPipeError):  # else Python writes the unread rest when it exits, and fails
                self.process.stdin.close()
            raise UserError(f"METEOR stopped: {self.process.stderr.read().decode(errors='replace').strip()}")
        return line


def _line(text: str) -> str:
    """Return a text of several sentences on one line."""
    return text.replace("\n", " ")
