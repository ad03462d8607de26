"""Questions of a split, the windows of their passages, and answers from the logits of windows, as in BERT's program.

Windows slide over a passage that is too long to be read in one piece. The windows of a question are consecutive texts
of the split, ``[CLS] question [SEP] window [SEP]``. Each line of ``<split>.questions.jsonl`` holds the other data of
one question.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from s2sft_fairseq.data.bounded_files import parse_json
from s2sft_fairseq.data.text_files import check_text, line_problems, read_lines
from s2sft_fairseq.errors import UserError

Window = tuple[int, int]
"""The index of the first token of a window, and its number of tokens."""


def slide(length: int, room: int, stride: int) -> list[Window]:
    """Return windows over a passage; a passage that fits has one.

    Args:
        length: number of tokens of the passage.
        room: maximum number of tokens of a window.
        stride: tokens from the beginning of a window to that of the next; a larger stride than a window's size is
            reduced to it.
    """
    windows = [(0, min(length, room))]
    while sum(windows[-1]) < length:
        start, size = windows[-1]
        start += min(size, stride)
        windows.append((start, min(length - start, room)))
    return windows


def windows_of_most_context(length: int, windows: list[Window]) -> np.ndarray:
    """Return the number of the window in which each token of a passage has the most context (length,).

    The context of a token in a window is the smaller of the numbers of tokens to its left and to its right. Ties go to
    the longer window, then to the first one. Answers are searched only in this window of their first token.
    """
    tokens = np.arange(length)
    scores = np.full((len(windows), length), -1.0)
    for number, (start, size) in enumerate(windows):
        inside = tokens[start : start + size]
        scores[number, inside] = np.minimum(inside - start, start + size - 1 - inside) + 0.01 * size
    return scores.argmax(axis=0)


@dataclass(frozen=True)
class Question:
    """A question with the windows of its passage. The training split has no `passage` and `offsets`."""

    id: str
    query: int
    """Number of tokens of the question."""
    windows: list[Window]
    """Windows over the tokens of the passage."""
    answer: tuple[int, int] | None = None
    """First and last token of the answer in the passage; None: the question has no answer."""
    passage: str | None = None
    """The text of the passage."""
    offsets: list[tuple[int, int]] | None = None
    """The characters of the passage of each token, the end exclusive."""

    @property
    def first(self) -> int:
        """The index in each laid-out text at which the window begins."""
        return self.query + 2

    def labels(self) -> list[tuple[int, int]]:
        """Return the first and last index of the answer in each laid-out text; ``[CLS]`` if it is not whole in it."""
        places = []
        for start, size in self.windows:
            if self.answer is not None and start <= self.answer[0] and self.answer[1] < start + size:
                places.append((self.first + self.answer[0] - start, self.first + self.answer[1] - start))
            else:
                places.append((0, 0))
        return places

    def to_json(self) -> str:
        """Return a line of the file."""
        return json.dumps({name: value for name, value in asdict(self).items() if value is not None})


def questions_path(folder: Path, split: str) -> Path:
    """Return the path of the questions of a split."""
    return folder / f"{split}.questions.jsonl"


def read_questions(path: Path, count: int) -> list[Question]:
    """Read the questions of a split with `count` texts.

    Raises:
        UserError: the file is missing or damaged, or does not have `count` windows.
    """
    check_text(path, allow_json=True)
    questions, wrong = [], []
    for number, line in enumerate(read_lines(path), 1):
        try:
            questions.append(_parse(parse_json(line)))
        except ValueError:
            wrong.append(number)
    if wrong:
        raise UserError.of(line_problems(path, {"were not written by s2sft prepare squad": wrong}))
    windows = sum(len(question.windows) for question in questions)
    if windows != count:
        raise UserError(f"{path} has {windows:,} windows, but the binarized split has {count:,} texts")
    return questions


def label_array(questions: Sequence[Question]) -> np.ndarray:
    """Return the labels of all windows, int64 (windows, 2)."""
    return np.array([places for question in questions for places in question.labels()], dtype=np.int64)


_MUST_HAVE = {"id", "query", "windows"}
_MAY_HAVE = {"answer", "passage", "offsets"}


def _parse(values: Any) -> Question:
    """Return the question of a line.

    Raises:
        ValueError: `Question.to_json` did not write the line.
    """
    if not isinstance(values, dict) or not _MUST_HAVE <= values.keys() <= _MUST_HAVE | _MAY_HAVE:
        raise ValueError("other names than those of a question")
    values = {name: value for name, value in values.items() if value is not None or name in _MUST_HAVE}
    if not isinstance(values["id"], str) or not isinstance(values.get("passage", ""), str):
        raise ValueError("a value must be text, but is not")
    pairs = {name: [_pair(pair) for pair in _list(values[name])] for name in ("windows", "offsets") if name in values}
    if type(values["query"]) is not int or values["query"] < 0:
        raise ValueError("query is no number of tokens")
    return Question(**{**values, **pairs, "answer": _pair(values["answer"]) if "answer" in values else None})


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise ValueError("a value must be a list, but is not")
    return value


def _pair(value: Any) -> tuple[int, int]:
    first, second = _list(value)
    if not (type(first) is type(second) is int and first >= 0 and second >= 0):
        raise ValueError("a value must be two numbers from 0 on, but is not")
    return first, second


@dataclass(frozen=True)
class Answer:
    """A span of a passage."""

    text: str
    score: float
    """The sum of the start logit of its first token and the end logit of its last token."""
    start: int
    """The index of its first character in the passage."""
    end: int
    """The index after its last character."""


@dataclass(frozen=True)
class Answers:
    """The answers to a question."""

    best: list[Answer]
    """The best spans, the best first; empty for an empty passage."""
    null: float
    """The score of no answer: the smallest score of ``[CLS]`` over all windows."""

    @property
    def null_odds(self) -> float:
        """The odds of no answer: its score minus the score of the best answer."""
        return self.null - self.best[0].score if self.best else float("inf")

    def text(self, null_threshold: float = float("inf")) -> str:
        """Return the best text, or the empty string if the odds of no answer are above the threshold."""
        return self.best[0].text if self.best and self.null_odds <= null_threshold else ""


def find_answers(question: Question, logits: Sequence[np.ndarray], max_tokens: int, count: int = 1) -> Answers:
    """Find the best spans of a passage over all of its windows.

    A span begins in the window where its first token has the most context, and ends in the same window. All such spans
    are compared; BERT's program combines only the 20 best starts and ends.

    Args:
        question: the question, with its passage and offsets.
        logits: the logits of each window, (tokens of the laid-out text, 2).
        max_tokens: maximum number of tokens of an answer.
        count: number of spans to find; fewer if the passage has fewer.
    """
    offsets, passage = question.offsets or [], question.passage or ""
    owner = windows_of_most_context(len(offsets), question.windows)
    found: list[tuple[float, int, int]] = []
    for number, ((start, size), of_window) in enumerate(zip(question.windows, logits, strict=True)):
        first, last = of_window[question.first : question.first + size].T
        # Row i has the scores of the spans that begin with token i, with 1 token, 2 tokens, and so on.
        ends = np.concatenate([last, np.full(max_tokens, -np.inf, dtype=last.dtype)])
        scores = first[:, np.newaxis] + np.lib.stride_tricks.sliding_window_view(ends, max_tokens)[:size]
        scores[owner[start : start + size] != number] = -np.inf
        flat = scores.ravel()
        best = np.argpartition(-flat, count)[:count] if len(flat) > count else np.arange(len(flat))
        for place in best[np.isfinite(flat[best])].tolist():
            begin, more = divmod(place, max_tokens)
            found.append((float(flat[place]), start + begin, start + begin + more))
    found.sort(key=lambda span: (-span[0], *span[1:]))
    spans = [(score, offsets[begin][0], offsets[end][1]) for score, begin, end in found[:count]]
    return Answers(
        [Answer(passage[start:end], score, start, end) for score, start, end in spans],
        min(float(of_window[0].sum()) for of_window in logits),
    )
