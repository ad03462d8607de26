"""The base of the encoder-decoder's tasks: parts of several languages, mixed by temperature.

Types are written ``Optional[...]``, the only form that fairseq's command line supports.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np
from fairseq.models import BaseFairseqModel

from s2sft_fairseq.data.binarized_text import load_texts
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.data.mixture_dataset import MixtureDataset
from s2sft_fairseq.data.mixture_parts import MixturePart, SpanPart, TemperatureSchedule
from s2sft_fairseq.data.text_datasets import TokenBlocks
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.span_corruption import SENTINEL, SpanCorruption
from s2sft_fairseq.tasks.options import DataOptions, PrecisionOptions, TextBlockOptions, text_block_problems
from s2sft_fairseq.tasks.packed_task import OneDictionaryTask

logger = logging.getLogger(__name__)


@dataclass
class MixtureConfig(DataOptions, TextBlockOptions, PrecisionOptions):
    """Options of the languages, of their sampling, and of the corruption of texts."""

    lang_pairs: Optional[str] = field(
        default=None,
        metadata={
            "help": "pairs of suffixes in the data folder, such as en-de,de-en; src-tgt:en where the suffix of the "
            "targets does not name their language"
        },
    )
    text_languages: Optional[str] = field(
        default=None,
        metadata={
            "help": "languages of plain text, such as en,de: each has a subfolder of the data folder, which s2sft "
            "preprocess --only-source wrote"
        },
    )
    first_temperature: float = field(
        default=1.0, metadata={"help": "temperature of the first epoch; 1: languages come as often as in the data"}
    )
    temperature: float = field(
        default=5.0,
        metadata={
            "help": "temperature that is reached after --temperature-epochs; the same as --first-temperature for one "
            "that does not change"
        },
    )
    temperature_epochs: int = field(default=5, metadata={"help": "epochs in which the temperature rises"})
    epoch_examples: Optional[int] = field(
        default=None,
        metadata={"help": "examples of an epoch (default: as many as the data has of all languages together)"},
    )
    span_density: float = field(
        default=0.15, metadata={"help": "share of the tokens of a text that are taken out of it (default: 0.15)"}
    )
    mean_span_length: float = field(default=3.0, metadata={"help": "mean length of spans in tokens (default: 3)"})


def temperature_schedule(cfg: MixtureConfig) -> TemperatureSchedule:
    """Return the temperature schedule of the options."""
    return TemperatureSchedule(cfg.first_temperature, cfg.temperature, cfg.temperature_epochs)


def mixture_problems(cfg: MixtureConfig) -> list[str]:
    """Return the problems of the options, a sentence each.

    Those of the temperature are found where it is used, since ``s2sft generate`` has another --temperature.
    """
    problems = SpanCorruption(cfg.span_density, cfg.mean_span_length).problems("--span-density")
    if cfg.epoch_examples is not None and cfg.epoch_examples < 1:
        problems.append(f"--epoch-examples must be at least 1, but is {cfg.epoch_examples}")
    return [*problems, *text_block_problems(cfg)]


class MixtureTask(OneDictionaryTask):
    """A task of an encoder-decoder that mixes several languages."""

    model_name = "deltalm"
    same_in_a_run = ("lang_pairs", "text_languages", "language_token")

    def __init__(self, cfg: MixtureConfig, dictionary: FairseqDictionary, *others: Any) -> None:
        """Check the options; ``others`` are further arguments of another base class.

        Raises:
            UserError: lists every option that is out of range.
        """
        cfg.tokens_per_sample = 512 if cfg.tokens_per_sample is None else cfg.tokens_per_sample
        super().__init__(cfg, *others)
        self.dictionary = dictionary
        self.max_source = self.max_target = 0  # set by `build_model`
        if problems := mixture_problems(cfg):
            raise UserError.of(problems)
        self.corruption = SpanCorruption(cfg.span_density, cfg.mean_span_length)

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> BaseFairseqModel:
        """Build the model, whose positions limit sources and targets.

        Raises:
            UserError: options, checkpoint, dictionary and model do not fit each other.
        """
        model = super().build_model(cfg, from_checkpoint)
        self.max_source, self.max_target = model.max_positions()
        self.max_target_of_model = self.max_target  # the limit of the search
        return model

    def text_part(
        self, folder: Path, split: str, language: str, *, prefix: Sequence[int] = (), target_sentinels: bool = True
    ) -> SpanPart:
        """Load the plain text of a language.

        Args:
            folder: the data folder, with a subfolder for the language.
            split: the split, such as ``train``.
            language: the name of the language.
            prefix: ids that every source begins with.
            target_sentinels: whether the targets have sentinels.

        Raises:
            UserError: files are missing or truncated, or hold no text that is long enough; or the model has too few
                positions or the dictionary too few sentinels for such long texts.
        """
        lines = load_texts(folder / language, split, self.dictionary, self.cfg.dataset_impl)
        blocks = TokenBlocks(lines, self.cfg.tokens_per_sample, least=self.cfg.min_tokens_per_sample)
        logger.info(
            f"{split}, {language}: {len(blocks):,} texts of {blocks.sizes.mean():,.0f} tokens on average; "
            f"{blocks.num_short:,} documents with fewer than {self.cfg.min_tokens_per_sample} tokens are left out "
            "(--min-tokens-per-sample)"
        )
        return self.span_part(language, blocks, self.corruption, prefix=prefix, target_sentinels=target_sentinels)

    def span_part(self, name: str, texts: Any, corruption: SpanCorruption, **how: Any) -> SpanPart:
        """Return a part of texts with span corruption, see `SpanPart`.

        Raises:
            UserError: the model has too few positions or the dictionary too few sentinels for such long texts.
        """
        sentinels = self.sentinels()
        longest = int(np.max(texts.sizes, initial=2))
        needed = int(corruption.counts(np.arange(2, longest + 1))[1].max())
        if needed > len(sentinels):
            raise UserError(
                f"texts of {longest} tokens (--tokens-per-sample) have up to {needed} spans, but the dictionary has "
                f"{len(sentinels)} sentinels ({SENTINEL.format(0)} and so on): s2sft convert --sentinels {needed} adds "
                "them to a pretrained encoder"
            )
        part = SpanPart(name, texts, corruption, sentinels, eos=self.dictionary.eos(), **how)
        for side, sizes, most in (
            ("sources", part.source_sizes, self.max_source),
            ("targets", part.target_sizes, self.max_target),
        ):
            if len(sizes) and sizes.max() > most:
                raise UserError(
                    f"--tokens-per-sample must be smaller: {name} has {side} of {sizes.max()} positions, but the model "
                    f"has {most} (--max-positions)"
                )
        return part

    def sentinels(self) -> list[int]:
        """Return the ids of the sentinels in the dictionary."""
        ids: list[int] = []
        while (symbol := SENTINEL.format(len(ids))) in self.dictionary:
            ids.append(self.dictionary.index(symbol))
        return ids

    def mixture(self, split: str, groups: Sequence[Sequence[MixturePart]], epoch: int) -> MixtureDataset:
        """Return the data set of a split; only the training set is sampled by temperature.

        Raises:
            UserError: the temperatures are out of range.
        """
        schedule = temperature_schedule(self.cfg) if split == self.cfg.train_subset else None
        if schedule and (problems := schedule.problems()):
            raise UserError.of(problems)
        dataset = MixtureDataset(
            groups,
            schedule,
            pad=self.dictionary.pad(),
            eos=self.dictionary.eos(),
            vocab_size=len(self.dictionary),
            seed=self.cfg.seed,
            epoch_examples=self.cfg.epoch_examples,
            name=split,
        )
        dataset.set_epoch(epoch)
        return dataset

    def begin_epoch(self, epoch: int, model: BaseFairseqModel) -> None:
        """Log how many examples of each part the epoch has."""
        super().begin_epoch(epoch, model)
        self.datasets[self.cfg.train_subset].log_counts()

    def max_positions(self) -> None:
        """Return None: long examples are cut, so that none is too long."""
