"""From the logits of windows to answers, as in BERT's program for SQuAD."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from s2sft_fairseq.question_answering.questions import Question
from s2sft_fairseq.question_answering.windows import windows_of_most_context


@dataclass(frozen=True)
class Answer:
    """A span of a passage."""

    text: str
    score: float
    """The logit of its first token as first and of its last as last, added up."""


@dataclass(frozen=True)
class Answers:
    """What was found for a question."""

    best: list[Answer]
    """The best spans, the best first; none of an empty passage."""
    null: float
    """The least score that any window gives to ``[CLS]``: that there is no answer."""

    @property
    def null_odds(self) -> float:
        """How much likelier no answer is than the best one, as a difference of scores."""
        return self.null - self.best[0].score if self.best else float("inf")

    def text(self, null_threshold: float = float("inf")) -> str:
        """Return the best text, or nothing where the odds of no answer are above the threshold."""
        return self.best[0].text if self.best and self.null_odds <= null_threshold else ""


def find_answers(question: Question, logits: Sequence[np.ndarray], max_tokens: int, count: int = 1) -> Answers:
    """Find the best spans of a passage over all of its windows.

    A span begins in the window where its first token has the most context, and ends in the same window. All such spans
    are compared, where BERT's program takes the 20 best ends of each side.

    Args:
        question: with its passage.
        logits: of each window, (tokens of the laid-out text, 2).
        max_tokens: of an answer.
        count: how many spans to find; fewer where there are fewer.
    """
    offsets, passage = question.offsets or [], question.passage or ""
    owner = windows_of_most_context(len(offsets), question.windows)
    found: list[tuple[float, int, int]] = []
    for number, ((start, size), of_window) in enumerate(zip(question.windows, logits, strict=True)):
        first, last = of_window[question.first : question.first + size].T
        # Row i has the spans that begin with token i: of 1 token, of 2, and so on.
        ends = np.concatenate([last, np.full(max_tokens, -np.inf, dtype=last.dtype)])
        scores = first[:, np.newaxis] + np.lib.stride_tricks.sliding_window_view(ends, max_tokens)[:size]
        scores[owner[start : start + size] != number] = -np.inf
        flat = scores.ravel()
        best = np.argpartition(-flat, count)[:count] if len(flat) > count else np.arange(len(flat))
        for place in best[np.isfinite(flat[best])].tolist():
            begin, more = divmod(place, max_tokens)
            found.append((float(flat[place]), start + begin, start + begin + more))
    found.sort(key=lambda span: (-span[0], *span[1:]))
    return Answers(
        [Answer(passage[offsets[begin][0] : offsets[end][1]], score) for score, begin, end in found[:count]],
        min(float(of_window[0].sum()) for of_window in logits),
    )
