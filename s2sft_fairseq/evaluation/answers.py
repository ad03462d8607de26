"""F1 and exact match of answers, as the official evaluations of CoQA and of SQuAD v1.1 and v2.0 compute them.

Texts are lower-cased, then punctuation is removed, then the articles a, an, the. With several references, SQuAD takes
the best score. CoQA (Reddy et al. 2019) leaves out one reference at a time, takes the best score against the others,
and averages these scores, because human answers are scored against one reference fewer, too.

SQuAD v2.0 also scores questions without an answer: an empty prediction is right, any other is wrong. If the odds that
there is no answer are given, the threshold of the odds that is best on these very questions is computed, too.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.evaluation.statistics import Means, Measured, Statistics

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def coqa(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute the mean F1 and exact match over the questions."""
    values: dict[str, list[float]] = {"F1": [], "EM": []}
    for example in examples:
        answer, *references = [answer_words(text) for text in (example.hypothesis, *example.references)]
        for name, score in (("F1", word_f1), ("EM", _exact_match)):
            values[name].append(_leaving_one_out(score, answer, references))
    return Measured(Means(values), "tool:s2sft|norm:coqa|multi:jackknife")


def answer_words(text: str) -> list[str]:
    """Return the words of a text that are compared."""
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def word_f1(answer: Sequence[str], reference: Sequence[str]) -> float:
    """Return the harmonic mean of precision and recall of words.

    If one side is empty, the result is 1 if both are, else 0.
    """
    if not answer or not reference:
        return float(answer == reference)
    common = (Counter(answer) & Counter(reference)).total()
    return 2 * common / (len(answer) + len(reference))


def _exact_match(answer: Sequence[str], reference: Sequence[str]) -> float:
    return float(answer == reference)


def _leaving_one_out(
    score: Callable[[Sequence[str], Sequence[str]], float], answer: Sequence[str], references: Sequence[Sequence[str]]
) -> float:
    scores = [score(answer, reference) for reference in references]
    if len(scores) == 1:
        return scores[0]
    return sum(max(scores[:out] + scores[out + 1 :]) for out in range(len(scores))) / len(scores)


def squad_v1(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute the mean exact match and F1 over the questions."""
    scores = [_scores(example.hypothesis, example.references, of_nothing=0.0) for example in examples]
    exact, f1 = zip(*scores, strict=True)
    return Measured(Means({"EM": exact, "F1": f1}), "tool:s2sft|norm:squad_v1.1")


def squad_v2(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute mean exact match and F1 over all questions, those with and those without an answer.

    With odds that there is no answer, compute the scores at the best threshold of the odds, too.
    """
    thresholds = "" if settings.null_threshold is None else f"|null:{settings.null_threshold:g}"
    return Measured(SquadScores(examples, settings.null_threshold), f"tool:s2sft|norm:squad_v2.0{thresholds}")


class SquadScores(Statistics):
    """The scores of each question of SQuAD v2.0."""

    def __init__(self, examples: Sequence[Example], threshold: float | None) -> None:
        """Score all questions.

        Args:
            examples: the questions; one without an answer has an empty reference.
            threshold: odds above which the prediction is taken to be empty; None: use the predictions as they are.
        """
        # A reference without words, such as "the", does not count.
        references = [[text for text in example.references if answer_words(text)] for example in examples]
        scores = [_scores(e.hypothesis, r or [""], of_nothing=None) for e, r in zip(examples, references, strict=True)]
        self.raw = np.array(scores)  # exact match and F1 (N, 2)
        self.has_answer = np.array([any(example.references) for example in examples])
        self.says_something = np.array([bool(example.hypothesis) for example in examples])
        odds = [example.null_odds for example in examples]
        self.odds = None if None in odds else np.array(odds, dtype=float)
        self.scores = self.raw
        if self.odds is not None and threshold is not None:
            is_null = self.odds > threshold
            self.scores = np.where(is_null[:, np.newaxis], ~self.has_answer[:, np.newaxis], self.raw).astype(float)

    def over(self, chosen: np.ndarray) -> dict[str, float]:
        """Return the scores over the chosen questions, see `Statistics.over`."""
        scores, has_answer = self.scores[chosen], self.has_answer[chosen]
        found = {"EM": _percent(scores[:, 0]), "F1": _percent(scores[:, 1])}
        for name, which, exist in (
            ("HasAns", has_answer, self.has_answer.any()),
            ("NoAns", ~has_answer, not self.has_answer.all()),
        ):
            if exist:
                found |= {f"{name} EM": _percent(scores[which, 0]), f"{name} F1": _percent(scores[which, 1])}
        if self.odds is not None:
            for column, name in enumerate(("EM", "F1")):
                best, threshold = self._best(self.odds, chosen, column)
                found |= {f"best {name}": best, f"threshold of best {name}": threshold}
        return found

    def zeros(self, chosen: np.ndarray) -> dict[str, np.ndarray]:
        """Return the numbers of the chosen questions that score 0, see `Statistics.zeros`."""
        return {name: chosen[self.scores[chosen, column] == 0] for column, name in enumerate(("EM", "F1"))}

    def _best(self, odds: np.ndarray, chosen: np.ndarray, column: int) -> tuple[float, float]:
        """Return the best score over all thresholds, in percent, and the least threshold that gives it.

        Start with empty predictions for all questions, then answer one after the other in the order of their odds.
        """
        order = chosen[np.argsort(odds[chosen], kind="stable")]
        gains = np.where(self.has_answer[order], self.raw[order, column], -self.says_something[order].astype(float))
        totals = np.concatenate([[0.0], np.cumsum(gains)]) + (~self.has_answer[order]).sum()
        best = int(totals.argmax())
        threshold = 0.0 if best == 0 else float(odds[order[best - 1]])
        return 100 * float(totals[best]) / len(chosen), threshold


def _scores(answer: str, references: Sequence[str], *, of_nothing: float | None) -> tuple[float, float]:
    """Return exact match and F1 with the best reference.

    Args:
        answer: the prediction.
        references: the right answers.
        of_nothing: F1 if answer or reference has no words; None: 1 if both have no words, else 0.
    """
    words = answer_words(answer)
    exact, f1 = 0.0, 0.0
    for reference in map(answer_words, references):
        exact = max(exact, float(words == reference))
        has_words = bool(words and reference)
        f1 = max(f1, word_f1(words, reference) if has_words or of_nothing is None else of_nothing)
    return exact, f1


def _percent(scores: np.ndarray) -> float:
    return 100 * float(scores.mean()) if len(scores) else 0.0
