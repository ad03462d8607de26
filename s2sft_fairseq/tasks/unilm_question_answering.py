"""The task of finding the answers to questions in passages, such as SQuAD."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.tasks import register_task
from torch import nn

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.encoder_with_head import SpanHead
from s2sft_fairseq.models.unilm_config import UnilmConfig
from s2sft_fairseq.question_answering.questions import Question, label_array, questions_path, read_questions
from s2sft_fairseq.tasks.options import data_folder
from s2sft_fairseq.tasks.understanding_task import UnderstandingConfig, UnderstandingTask


@dataclass
class UnilmQuestionAnsweringConfig(UnderstandingConfig):
    """Nothing but where the data is and its segments: how long windows are is up to ``s2sft prepare squad``."""


@register_task("unilm_question_answering", dataclass=UnilmQuestionAnsweringConfig)
class UnilmQuestionAnsweringTask(UnderstandingTask):
    """Windows of passages with their questions; the labels are first and last token of the answer, or ``[CLS]``."""

    criterion = "answer_span"

    def make_head(self, cfg: UnilmConfig) -> nn.Module:
        """Make the head."""
        return SpanHead(cfg.encoder_embed_dim)

    def load_dataset(self, split: str, epoch: int = 1, **_: Any) -> None:
        """Load a split.

        Raises:
            UserError: if its files are missing or damaged, or a window is too long for the model.
        """
        super().load_dataset(split, epoch)
        longest = int(np.max(self.datasets[split].texts.sizes)) + 1
        if longest > self.form.max_source:
            raise UserError(
                f"{split} has windows of {longest} positions, but --max-positions of the model is "
                f"{self.form.max_source}: give s2sft prepare squad --max-positions {self.form.max_source}"
            )

    def read_labels(self, folder: Path, split: str, count: int) -> np.ndarray | None:
        """Return where the answers are in each window, int64 (count, 2)."""
        return label_array(read_questions(questions_path(folder, split), count))

    def questions(self, split: str, count: int) -> list[Question]:
        """Read the questions of a split of so many windows.

        Raises:
            UserError: if their file is missing or damaged, or is that of another split.
        """
        return read_questions(questions_path(data_folder(self.cfg), split), count)

    def split_logits(self, logits: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
        """Return the logits of each window of a batch (tokens, 2)."""
        return np.split(logits, np.cumsum(lengths)[:-1])
