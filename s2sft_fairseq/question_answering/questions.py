"""What is known of the questions of a split beside the ids of their windows: ``<split>.questions.jsonl``.

A line is a question. Its windows are consecutive texts of the split, ``[CLS] question [SEP] window [SEP]``.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from s2sft_fairseq.data.text_files import check_text, line_problems, read_lines
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.question_answering.windows import Window


@dataclass(frozen=True)
class Question:
    """A question and where its passage and its answer are; what only predictions need may be left out of training."""

    id: str
    query: int
    """Tokens of the question."""
    windows: list[Window]
    """Over the tokens of the passage."""
    answer: tuple[int, int] | None = None
    """First and last token of the answer in the passage; None: it has none."""
    passage: str | None = None
    """The text."""
    offsets: list[tuple[int, int]] | None = None
    """The characters of the passage that each of its tokens stands for, the end exclusive."""

    @property
    def first(self) -> int:
        """The place in each laid-out text at which its window begins."""
        return self.query + 2

    def labels(self) -> list[tuple[int, int]]:
        """Return the places of the answer in each laid-out text, or of ``[CLS]`` where it is not whole within it."""
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
    """Return where the questions of a split are."""
    return folder / f"{split}.questions.jsonl"


def read_questions(path: Path, count: int) -> list[Question]:
    """Read the questions of a split with `count` texts.

    Raises:
        UserError: if the file is missing or damaged, or the windows are not as many as the texts.
    """
    check_text(path)
    questions, wrong = [], []
    for number, line in enumerate(read_lines(path), 1):
        try:
            questions.append(_parse(json.loads(line)))
        except (ValueError, TypeError, KeyError):
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


def _parse(values: dict) -> Question:
    windows = [(int(start), int(size)) for start, size in values.pop("windows")]
    answer = values.pop("answer", None)
    return Question(windows=windows, answer=None if answer is None else (int(answer[0]), int(answer[1])), **values)
