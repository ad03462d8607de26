"""The task of pre-training DeltaLM: span corruption of texts, and translation span corruption of pairs."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq.tasks import register_task

from s2sft_fairseq.data.binarized_text import (
    LanguagePair,
    load_common_dictionary,
    load_split,
    parse_languages,
    parse_pairs,
)
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.data.mixture_parts import ConcatenatedPairs, SpanPart
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.span_corruption import SpanCorruption
from s2sft_fairseq.tasks.mixture_task import MixtureConfig, MixtureTask
from s2sft_fairseq.tasks.options import data_folder

logger = logging.getLogger(__name__)


@dataclass
class DeltaLMPretrainingConfig(MixtureConfig):
    """Options of the data and of the objective, with the paper's defaults (section 2.3)."""

    translation_span_density: float = field(
        default=0.5, metadata={"help": "share of the tokens of a pair that are taken out of it (default: 0.5)"}
    )


@register_task("deltalm_pretraining", dataclass=DeltaLMPretrainingConfig)
class DeltaLMPretrainingTask(MixtureTask):
    """Span corruption of texts and of concatenated pairs; one temperature mixes all languages and pairs."""

    may_begin_at_random = True

    def __init__(self, cfg: DeltaLMPretrainingConfig, dictionary: FairseqDictionary) -> None:
        super().__init__(cfg, dictionary)
        self.languages, self.pairs = parse_languages(cfg.text_languages), parse_pairs(cfg.lang_pairs)
        self.pair_corruption = SpanCorruption(cfg.translation_span_density, cfg.mean_span_length)
        if problems := self.pair_corruption.problems("--translation-span-density"):
            raise UserError.of(problems)

    @classmethod
    def setup_task(cls, cfg: DeltaLMPretrainingConfig, **_: Any) -> "DeltaLMPretrainingTask":
        """Load the dictionary.

        Raises:
            UserError: data or dictionary are missing, or options are out of range.
        """
        folder = data_folder(cfg)
        paths = [folder / language / "dict.txt" for language in parse_languages(cfg.text_languages)]
        pairs = parse_pairs(cfg.lang_pairs)
        paths += [folder / f"dict.{suffix}.txt" for pair in pairs for suffix in (pair.source, pair.target)]
        if not paths:
            raise UserError("--text-languages or --lang-pairs, or both, are needed: what to read in the data folder")
        return cls(cfg, load_common_dictionary(paths))

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **_: Any) -> None:
        """Load a split of all languages and pairs.

        Raises:
            UserError: files are missing or truncated, or texts are too long for the model or its sentinels.
        """
        folder = data_folder(self.cfg, split, epoch)
        parts = [self.text_part(folder, split, language) for language in self.languages]
        parts += [self._pair_part(folder, split, pair, combine) for pair in self.pairs]
        self.datasets[split] = self.mixture(split, [parts], epoch)

    def _pair_part(self, folder: Path, split: str, pair: LanguagePair, combine: bool) -> SpanPart:
        source, target = load_split(
            folder, split, pair.source, pair.target, self.dictionary, self.cfg.dataset_impl, combine
        )
        if target is None:
            raise UserError(f"{folder} has no targets ({pair.target}) for the split {split!r} of {pair}")
        texts = ConcatenatedPairs(source, target, self.cfg.tokens_per_sample)
        if texts.num_cut or texts.num_empty:
            logger.warning(
                f"{split}, {pair}: {texts.num_cut:,} of {len(source):,} pairs have a side that is cut to {texts.half} "
                f"tokens (half of --tokens-per-sample); {texts.num_empty:,} with an empty side are left out"
            )
        return self.span_part(str(pair), texts, self.pair_corruption)
