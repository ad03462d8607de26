"""The tasks of understanding: classification or regression of texts, such as GLUE, and answers in passages (SQuAD).

Both have texts, a label for each, and a head on the encoder.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np
from fairseq.tasks import register_task

from s2sft_fairseq.data.binarized_text import load_text_dictionary, load_texts
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.data.labels import CLASSES, checked_classes, read_class_labels, read_classes, read_number_labels
from s2sft_fairseq.data.text_datasets import LabelledDataset
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.encoder_with_head import ClassificationHead, EncoderWithHead, SpanHead
from s2sft_fairseq.models.unilm_config import UnilmConfig
from s2sft_fairseq.objectives.sequence_form import SequenceForm
from s2sft_fairseq.question_answering.questions import Question, label_array, questions_path, read_questions
from s2sft_fairseq.tasks.layout import make_text_form
from s2sft_fairseq.tasks.options import (
    DataOptions,
    FieldCutOptions,
    PrecisionOptions,
    SegmentOptions,
    SourceLengthOptions,
    data_folder,
)
from s2sft_fairseq.tasks.packed_task import PackedTask


@dataclass
class UnderstandingConfig(DataOptions, SegmentOptions, PrecisionOptions):
    """Options of data with labels, and of the layout of texts."""


class UnderstandingTask(PackedTask):
    """A task on texts of one or more fields, ``[CLS] a [SEP] b [SEP]``; a subclass defines the head and the labels."""

    same_in_a_run = ("regression", "classes", "source_segments", "source_truncation", "source_field_positions")

    both_directions = "classification and answers in passages, whose heads read whole texts at their tokens"

    form: SequenceForm

    @classmethod
    def setup_task(cls, cfg: UnderstandingConfig, **_: Any) -> "UnderstandingTask":
        """Load the dictionary.

        Raises:
            UserError: it is missing or damaged.
        """
        return cls(cfg, load_text_dictionary(data_folder(cfg)))

    @abstractmethod
    def make_head(self, cfg: UnilmConfig) -> ClassificationHead | SpanHead:
        """Return a new head for an encoder with these options."""

    @abstractmethod
    def read_labels(self, folder: Path, split: str, count: int) -> np.ndarray | None:
        """Read the labels of the texts of a split (count, ...); return None if there are none."""

    @abstractmethod
    def split_logits(self, logits: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
        """Split the logits of a batch into those of each text, given the lengths of the texts."""

    def max_source(self, max_positions: int) -> int:
        """Return the maximum number of positions of a text, for a model with `max_positions`."""
        return max_positions

    def field_options(self) -> dict[str, str]:
        """Return the options of cutting the fields of a long text, by name."""
        return {"source_truncation": "right", "source_field_positions": "0"}

    def build_model(self, cfg: UnilmConfig, from_checkpoint: bool = False) -> EncoderWithHead:
        """Build the encoder, from ``--pretrained`` if that is given, and add the head.

        Raises:
            UserError: options, checkpoint, dictionary and model do not fit each other.
        """
        encoder = super().build_model(cfg, from_checkpoint)
        self.form = make_text_form(
            self.dictionary,
            encoder.cfg,
            self.max_source(encoder.cfg.max_positions),
            source_segments=self.cfg.source_segments,
            **self.field_options(),
        )
        return EncoderWithHead(encoder, self.make_head(encoder.cfg))

    def load_dataset(self, split: str, epoch: int = 1, **_: Any) -> None:
        """Load a split from the data folder of this epoch, see `data_folder`.

        Raises:
            UserError: its files are missing or damaged, or the training set has no labels.
        """
        folder = data_folder(self.cfg, split, epoch)
        texts = load_texts(folder, split, self.dictionary, self.cfg.dataset_impl)
        labels = self.read_labels(folder, split, len(texts))
        is_training = split == self.cfg.train_subset
        if labels is None and is_training:
            raise UserError(f"{folder} has no labels to train on for the split {split!r}")
        self.datasets[split] = LabelledDataset(
            texts, labels, self.form, seed=self.cfg.seed, shuffle=is_training, name=split
        )

    def max_positions(self) -> int:
        """Return the maximum number of positions of a laid-out text; longer ones are cut."""
        return self.form.max_source


@dataclass
class UnilmClassificationConfig(UnderstandingConfig, SourceLengthOptions, FieldCutOptions):
    """Options of labels, and of cutting long texts."""

    regression: bool = field(default=False, metadata={"help": "labels are numbers, not classes"})
    classes: Optional[str] = field(
        default=None,
        metadata={
            "help": "names of the classes, separated by commas; the second of two is the positive one (default: the "
            f"lines of {CLASSES} in the data folder)"
        },
    )


@register_task("unilm_classification", dataclass=UnilmClassificationConfig)
class UnilmClassificationTask(UnderstandingTask):
    """Classification or regression of texts."""

    criterion = "classification"

    classes: tuple[str, ...]
    """The names of the classes in the order of the outputs; () for regression."""

    def __init__(self, cfg: UnilmClassificationConfig, dictionary: FairseqDictionary) -> None:
        super().__init__(cfg, dictionary)
        if cfg.regression and cfg.classes is not None:
            raise UserError(f"--classes and --regression exclude each other, but --classes is {cfg.classes}")

    def build_model(self, cfg: UnilmConfig, from_checkpoint: bool = False) -> EncoderWithHead:
        """Build the model, with an output for each class.

        Raises:
            UserError: options, classes, checkpoint, dictionary and model do not fit each other.
        """
        self.classes = self._find_classes()
        return super().build_model(cfg, from_checkpoint)

    def _find_classes(self) -> tuple[str, ...]:
        """Return the classes of the options, else of the data, else of the checkpoint.

        Raises:
            UserError: there are none, or the checkpoint has others.
        """
        if self.cfg.regression:
            return ()
        path = data_folder(self.cfg) / CLASSES
        saved = self.state.state_dict.get("classes")
        if self.cfg.classes is not None:
            given = checked_classes(self.cfg.classes.split(","), "--classes")
        elif path.is_file():
            given = read_classes(path)
        elif saved:
            return tuple(saved)
        else:
            raise UserError(f"--classes or {path} is needed: the names of the classes; or --regression")
        if saved and tuple(saved) != given:
            raise UserError(
                f"the model was trained with the classes {', '.join(saved)}, but --classes or {path} has "
                f"{', '.join(given)}"
            )
        return given

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the task from a checkpoint. A resumed training must have the same classes.

        Raises:
            UserError: it has others.
        """
        super().load_state_dict(state_dict)
        if hasattr(self, "classes"):
            self._find_classes()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the task for a checkpoint."""
        return {**super().state_dict(), "classes": list(self.classes)}

    def make_head(self, cfg: UnilmConfig) -> ClassificationHead | SpanHead:
        """Return a new head, with the dropout of the model."""
        return ClassificationHead(cfg.encoder_embed_dim, len(self.classes) or 1, dropout=cfg.dropout)

    def max_source(self, max_positions: int) -> int:
        """Return ``--max-source-positions``, by default 128."""
        limit = self.cfg.max_source_positions
        return 128 if limit is None else limit

    def field_options(self) -> dict[str, str]:
        """Return ``--source-truncation`` and ``--source-field-positions``, or their defaults."""
        return {
            "source_truncation": self.cfg.source_truncation or "right,right",
            "source_field_positions": self.cfg.source_field_positions or "0",
        }

    def read_labels(self, folder: Path, split: str, count: int) -> np.ndarray | None:
        """Read ``<split>.label``: numbers of classes, int64 (count,), or for regression numbers, float32 (count,).

        Raises:
            UserError: the file does not have one class or number for each text.
        """
        path = folder / f"{split}.label"
        if not path.is_file():
            return None
        if self.cfg.regression:
            return read_number_labels(path, count)
        return read_class_labels(path, self.classes, count)

    def split_logits(self, logits: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
        """Return the logits of each text of a batch (C,)."""
        return list(logits)

    def predictions(self, logits: Sequence[np.ndarray]) -> list[str]:
        """Return the class or the number of each text, from its logits (C,)."""
        if self.cfg.regression:
            return [f"{value:.4f}" for (value,) in logits]
        return [self.classes[of_text.argmax()] for of_text in logits]


@dataclass
class UnilmQuestionAnsweringConfig(UnderstandingConfig):
    """Options of data and segments. ``s2sft prepare squad`` has those of windows."""


@register_task("unilm_question_answering", dataclass=UnilmQuestionAnsweringConfig)
class UnilmQuestionAnsweringTask(UnderstandingTask):
    """Windows of passages with their questions. Labels are first and last token of the answer, or ``[CLS]``."""

    criterion = "answer_span"

    def make_head(self, cfg: UnilmConfig) -> ClassificationHead | SpanHead:
        """Return a new head."""
        return SpanHead(cfg.encoder_embed_dim)

    def load_dataset(self, split: str, epoch: int = 1, **_: Any) -> None:
        """Load a split.

        Raises:
            UserError: its files are missing or damaged, or a window is too long for the model.
        """
        super().load_dataset(split, epoch)
        longest = int(np.max(self.datasets[split].texts.sizes)) + 1
        if longest > self.form.max_source:
            raise UserError(
                f"{split} has windows of {longest} positions, but --max-positions of the model is "
                f"{self.form.max_source}: give s2sft prepare squad --max-positions {self.form.max_source}"
            )

    def read_labels(self, folder: Path, split: str, count: int) -> np.ndarray | None:
        """Return the first and last index of the answer in each window, int64 (count, 2)."""
        return label_array(read_questions(questions_path(folder, split), count))

    def questions(self, split: str, count: int) -> list[Question]:
        """Read the questions of a split with `count` windows.

        Raises:
            UserError: their file is missing or damaged, or does not have `count` windows.
        """
        return read_questions(questions_path(data_folder(self.cfg), split), count)

    def split_logits(self, logits: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
        """Return the logits of each window of a batch (tokens, 2)."""
        return np.split(logits, np.cumsum(lengths)[:-1])
