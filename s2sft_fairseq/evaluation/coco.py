"""BLEU-4, METEOR 1.5 and ROUGE-L as question generation is scored: the code of the COCO caption evaluation.

qgevalcap (Du et al. 2017), which UniLM, s2s-ft, ERNIE-GEN and, through nlg-eval, XNLG use, is this code;
`pycocoevalcap` is its Python 3 version. Words are what stands between spaces. It differs from the other metrics of this
package: BLEU is not smoothed, and ROUGE-L weighs recall 1.44 times as much as precision, takes the best of each over
the references, and is not stemmed.
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

_PACKAGE = "pycocoevalcap"
# Of what METEOR counts in a segment: the words of hypothesis and reference, the chunks, and the words that match.
_LENGTHS, _CHUNKS, _MATCHES = slice(0, 2), 20, slice(21, 23)


def coco_bleu(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute corpus BLEU-4.

    Raises:
        UserError: `pycocoevalcap` is not installed.
    """
    scorer_class = optional_module("pycocoevalcap.bleu.bleu_scorer", _PACKAGE, "coco_bleu").BleuScorer
    scorer = scorer_class(n=4)
    for example in examples:
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
        for example in examples
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
    counts = [process.counts(example) for example in examples]
    signature = f"{tool(_PACKAGE)}|meteor:1.5|lang:en|norm:yes|chunks:corpus"
    return Measured(Sums(counts, lambda sums: {"METEOR": 100 * process.score(sums)}), signature)


class _Meteor:
    """pycocoevalcap's process of METEOR."""

    def __init__(self, meteor: Any) -> None:
        self.meteor = meteor
        self.process = meteor.meteor_p

    def counts(self, example: Example) -> list[float]:
        """Return what METEOR adds up over a corpus [23].

        A segment of one chunk that matches as a whole has no fragmentation: METEOR counts no chunk of it.
        """
        texts = [*example.references, example.hypothesis]
        counts = [float(word) for word in self._answer("SCORE", *map(_line, texts)).split()]
        if counts[_CHUNKS] == 1 and counts[_MATCHES] == counts[_LENGTHS]:
            counts[_CHUNKS] = 0.0
        return counts

    def score(self, sums: np.ndarray) -> float:
        """Return the score that belongs to sums of counts."""
        self._answer("EVAL", " ".join(map(str, sums.tolist())))
        return float(self._line())  # of the corpus; the line before was of its one segment

    def _answer(self, command: str, *fields: str) -> str:
        # The separator of fields must not be within one.
        line = " ||| ".join([command, *(field.replace("|||", "").replace("  ", " ") for field in fields)])
        with suppress(BrokenPipeError):  # it stopped; what it says is read below
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()
        return self._line()

    def _line(self) -> str:
        line = self.process.stdout.readline().decode()
        if not line:
            with suppress(BrokenPipeError):  # what it did not read, which would be written at the end
                self.process.stdin.close()
            raise UserError(f"METEOR stopped: {self.process.stderr.read().decode(errors='replace').strip()}")
        return line


def _line(text: str) -> str:
    """A text of several sentences as one."""
    return text.replace("\n", " ")
