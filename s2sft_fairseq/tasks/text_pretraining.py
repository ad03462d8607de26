"""The base of the encoders' pre-training tasks: plain text, cut into texts from which an objective makes examples."""

import logging
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from s2sft_fairseq.data.binarized_text import load_text_dictionary, load_texts
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.data.text_datasets import PackedTextDataset, TokenBlocks
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig
from s2sft_fairseq.objectives.packing import PackedExamples
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm
from s2sft_fairseq.tasks.options import (
    DataOptions,
    PlaceholderOptions,
    PrecisionOptions,
    TextBlockOptions,
    data_folder,
    symbol_problems,
    text_block_problems,
)
from s2sft_fairseq.tasks.packed_task import PackedTask

logger = logging.getLogger(__name__)


@dataclass
class TextPretrainingConfig(DataOptions, TextBlockOptions, PlaceholderOptions, PrecisionOptions):
    """Options of plain text and its layout."""


class TextPretrainingTask(PackedTask):
    """A task on plain text; a subclass makes the training examples."""

    same_in_a_run = (
        "placeholder",
        "target_segment",
        "language_model",
        "generation",
        "block_lengths",
        "fragment_lengths",
        "fragment_shares",
    )

    form: SequenceForm
    special_symbols: int
    """Number of positions that an objective adds to a text, without placeholders."""
    may_begin_at_random = True
    """Pre-training may begin from scratch, without ``--pretrained`` or ``--random-init``."""
    divider: int | None = None
    """The id of the symbol between the two halves of a text, if it has halves."""

    def __init__(self, cfg: TextPretrainingConfig, dictionary: FairseqDictionary) -> None:
        cfg.tokens_per_sample = 508 if cfg.tokens_per_sample is None else cfg.tokens_per_sample
        cfg.target_segment = 1 if cfg.target_segment is None else cfg.target_segment
        super().__init__(cfg, dictionary)
        problems = [
            *text_block_problems(cfg),
            *symbol_problems({"--placeholder": cfg.placeholder}, dictionary),
            *self.option_problems(),
        ]
        if problems:
            raise UserError.of(problems)

    @classmethod
    def setup_task(cls, cfg: TextPretrainingConfig, **_: Any) -> "TextPretrainingTask":
        """Load the dictionary.

        Raises:
            UserError: data or dictionary are missing, or options are out of range.
        """
        return cls(cfg, load_text_dictionary(data_folder(cfg)))

    @abstractmethod
    def option_problems(self) -> list[str]:
        """Return the problems of the objective's options, a sentence each."""

    @abstractmethod
    def packed_sizes(self, sizes: np.ndarray) -> np.ndarray:
        """Return the numbers of positions of packed texts, from their numbers of tokens (texts,)."""

    @abstractmethod
    def pack(self, text: Ragged, draws: Draws) -> PackedExamples:
        """Return the packed training examples of texts, given as rows of ids."""

    def build_model(self, cfg: UnilmConfig, from_checkpoint: bool = False) -> UnilmModel:
        """Build the model.

        Raises:
            UserError: options, checkpoint, dictionary and model do not fit each other.
        """
        model = super().build_model(cfg, from_checkpoint)
        problems = []
        most = model.cfg.max_positions - self.special_symbols
        if self.cfg.tokens_per_sample > most:
            problems.append(
                f"--tokens-per-sample must be at most {most}, which leaves {self.special_symbols} of the "
                f"--max-positions of the model ({model.cfg.max_positions}) for special symbols, "
                f"but is {self.cfg.tokens_per_sample}"
            )
        segments = model.cfg.num_segments
        if segments and not 0 <= self.cfg.target_segment < segments:
            problems.append(
                f"--target-segment must be at least 0 and below --num-segments of the model ({segments}), "
                f"but is {self.cfg.target_segment}"
            )
        if problems:
            raise UserError.of(problems)
        return model

    def load_dataset(self, split: str, epoch: int = 1, **_: Any) -> None:
        """Load a split from the data folder of this epoch, see `data_folder`.

        Raises:
            UserError: its files are missing or truncated, or hold no text that is long enough.
        """
        lines = load_texts(data_folder(self.cfg, split, epoch), split, self.dictionary, self.cfg.dataset_impl)
        limits = {"most": self.cfg.tokens_per_sample, "least": self.cfg.min_tokens_per_sample}
        blocks = TokenBlocks(lines, **limits, divider=self.divider)
        logger.info(
            f"{split}: {len(blocks):,} texts of {blocks.sizes.mean():,.0f} tokens on average, from "
            f"{blocks.num_documents:,} documents; {blocks.num_short:,} with fewer than "
            f"{self.cfg.min_tokens_per_sample} tokens are left out (--min-tokens-per-sample)"
        )
        self.datasets[split] = PackedTextDataset(
            blocks,
            self.form,
            self.flows,
            self.pack,
            self.packed_sizes(blocks.sizes),
            seed=self.cfg.seed,
            shuffle=split == self.cfg.train_subset,
            name=split,
        )

    def max_positions(self) -> None:
        """Return None: long texts are cut, so that none is too long."""
