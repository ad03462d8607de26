"""What the tasks of understanding have in common: texts, a label for each, and a head on the encoder."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from s2sft_fairseq.data.binarized_text import load_text_dictionary, load_texts
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.data.text_datasets import LabelledDataset
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.encoder_with_head import EncoderWithHead
from s2sft_fairseq.models.unilm_config import UnilmConfig
from s2sft_fairseq.objectives.sequence_form import SequenceForm
from s2sft_fairseq.tasks.layout import parse_source_fields
from s2sft_fairseq.tasks.options import DataOptions, SegmentOptions, data_folder
from s2sft_fairseq.tasks.packed_task import PackedTask


@dataclass
class UnderstandingConfig(DataOptions, SegmentOptions):
    """Where the data is, with the labels beside, and how texts are laid out."""


class UnderstandingTask(PackedTask):
    """Texts of one or more fields, ``[CLS] a [SEP] b [SEP]``, read as a whole; subclasses say what is predicted."""

    form: SequenceForm

    @classmethod
    def setup_task(cls, cfg: UnderstandingConfig, **_: Any) -> "UnderstandingTask":
        """Load the dictionary.

        Raises:
            UserError: if it is missing or damaged.
        """
        return cls(cfg, load_text_dictionary(data_folder(cfg)))

    @abstractmethod
    def make_head(self, cfg: UnilmConfig) -> nn.Module:
        """Make the head for an encoder with these options."""

    @abstractmethod
    def read_labels(self, folder: Path, split: str, count: int) -> np.ndarray | None:
        """Read the labels of the texts of a split (count, ...); None where there are none."""

    @abstractmethod
    def split_logits(self, logits: np.ndarray, lengths: Sequence[int]) -> list[np.ndarray]:
        """Return the logits of each text of a batch, from those of the model and the lengths of the texts."""

    def max_source(self, max_positions: int) -> int:
        """Return the positions of the longest text, of those that a model has."""
        return max_positions

    def field_options(self) -> dict[str, str]:
        """Return how the fields of too long a text give way, by the names of the options."""
        return {"source_truncation": "right", "source_field_positions": "0"}

    def build_model(self, cfg: UnilmConfig, from_checkpoint: bool = False) -> EncoderWithHead:
        """Build the encoder, from ``--pretrained`` if that is given, and put the head on it.

        Raises:
            UserError: if options, checkpoint, dictionary and model do not fit each other.
        """
        encoder = super().build_model(cfg, from_checkpoint)
        self.form = make_form(
            self.dictionary,
            encoder.cfg,
            self.max_source(encoder.cfg.max_positions),
            source_segments=self.cfg.source_segments,
            **self.field_options(),
        )
        return EncoderWithHead(encoder, self.make_head(encoder.cfg))

    def load_dataset(self, split: str, epoch: int = 1, **_: Any) -> None:
        """Load a split; of several data folders the one whose turn it is in this epoch.

        Raises:
            UserError: if its files are missing or damaged, or it lacks labels to train on.
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
        """Return the positions of the longest laid-out text; longer ones are cut."""
        return self.form.max_source


def make_form(
    dictionary: PretrainedDictionary,
    model: UnilmConfig,
    max_source: int,
    *,
    source_segments: str | None,
    **field_options: str,
) -> SequenceForm:
    """Make the layout of texts.

    Args:
        dictionary: of the data.
        model: its options.
        max_source: most positions of a text.
        source_segments: the option; None: the default.
        field_options: the others that `parse_source_fields` reads.

    Raises:
        UserError: naming every option that does not fit the model.
    """
    problems = []
    if not 3 <= max_source <= model.max_positions:
        problems.append(
            f"--max-source-positions must be at least 3 and at most --max-positions of the model "
            f"({model.max_positions}), but is {max_source}"
        )
    try:
        segments = ("0" if model.num_segments == 1 else "0,1") if source_segments is None else source_segments
        fields = parse_source_fields(
            {"source_segments": segments, **field_options}, model.num_segments, model.num_roles, model.num_turns
        )
    except UserError as error:
        problems += error.problems
    if problems:
        raise UserError.of(problems)
    return SequenceForm(
        cls=dictionary.bos(),
        sep=dictionary.eos(),
        pad=dictionary.pad(),
        placeholder=dictionary.mask(),
        vocab_size=len(dictionary),
        fields=fields,
        max_source=max_source,
    )
