"""The task of classifying texts and pairs of texts, or of giving them a number, such as those of GLUE."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np
from fairseq.tasks import register_task
from torch import nn

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.data.labels import CLASSES, checked_classes, read_class_labels, read_classes, read_number_labels
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.encoder_with_head import ClassificationHead, EncoderWithHead
from s2sft_fairseq.models.unilm_config import UnilmConfig
from s2sft_fairseq.tasks.options import FieldCutOptions, SourceLengthOptions, data_folder
from s2sft_fairseq.tasks.understanding_task import UnderstandingConfig, UnderstandingTask


@dataclass
class UnilmClassificationConfig(UnderstandingConfig, SourceLengthOptions, FieldCutOptions):
    """What the labels are, and how too long texts are cut."""

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
    """Texts and a class or a number for each."""

    criterion = "classification"

    classes: tuple[str, ...]
    """Their names in the order of the outputs; () of a regression."""

    def __init__(self, cfg: UnilmClassificationConfig, dictionary: PretrainedDictionary) -> None:
        super().__init__(cfg, dictionary)
        if cfg.regression and cfg.classes is not None:
            raise UserError(f"--classes and --regression exclude each other, but --classes is {cfg.classes}")

    def build_model(self, cfg: UnilmConfig, from_checkpoint: bool = False) -> EncoderWithHead:
        """Build the model, with an output for each class.

        Raises:
            UserError: if options, classes, checkpoint, dictionary and model do not fit each other.
        """
        self.classes = self._find_classes()
        return super().build_model(cfg, from_checkpoint)

    def _find_classes(self) -> tuple[str, ...]:
        """Return the classes that the checkpoint has, else those that the options or the data name.

        Raises:
            UserError: if there are none, or the checkpoint's are others.
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
        """Take what a checkpoint keeps of the task; a training that is resumed must have the same classes.

        Raises:
            UserError: if it has others.
        """
        super().load_state_dict(state_dict)
        if hasattr(self, "classes"):
            self._find_classes()

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps of the task."""
        return {**super().state_dict(), "classes": list(self.classes)}

    def make_head(self, cfg: UnilmConfig) -> nn.Module:
        """Make the head, with the dropout of the model."""
        return ClassificationHead(cfg.encoder_embed_dim, len(self.classes) or 1, dropout=cfg.dropout)

    def max_source(self, max_positions: int) -> int:
        """Return the option."""
        limit = self.cfg.max_source_positions
        return 128 if limit is None else limit

    def field_options(self) -> dict[str, str]:
        """Return the options."""
        return {
            "source_truncation": self.cfg.source_truncation or "right,right",
            "source_field_positions": self.cfg.source_field_positions or "0",
        }

    def read_labels(self, folder: Path, split: str, count: int) -> np.ndarray | None:
        """Read ``<split>.label``: numbers of classes, int64 (count,), or numbers, float32 (count,).

        Raises:
            UserError: if its lines are not one class or number for each text.
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
