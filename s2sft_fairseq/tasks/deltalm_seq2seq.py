"""The task of fine-tuning DeltaLM: one or many pairs of languages, and zero-shot transfer with plain text."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any, Optional

import numpy as np
import torch
from fairseq.criterions import FairseqCriterion
from fairseq.data import LanguagePairDataset
from fairseq.logging import metrics
from fairseq.models import BaseFairseqModel
from fairseq.search import Sampling
from fairseq.sequence_generator import SequenceGenerator
from fairseq.tasks import register_task
from fairseq.tasks.translation import EVAL_BLEU_ORDER, TranslationConfig, TranslationTask
from sacrebleu.metrics import BLEU
from torch import Tensor

from s2sft_fairseq.data.binarized_text import (
    LanguagePair,
    find_languages,
    load_common_dictionary,
    load_split,
    parse_languages,
    parse_pairs,
)
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.data.mixture_parts import PairPart
from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.inference.draws import seed_of
from s2sft_fairseq.inference.encoder_decoder_search import EncoderDecoderSearch, RepeatBlocker, SeededSampling
from s2sft_fairseq.inference.options import SearchConfig, SearchOptions, early_stop, search_problems
from s2sft_fairseq.objectives.sequence_form import EncoderDecoderForm
from s2sft_fairseq.tasks.mixture_task import MixtureConfig, MixtureTask
from s2sft_fairseq.tasks.options import LengthOptions, data_folder

logger = logging.getLogger(__name__)


@dataclass
class DeltaLMSeq2SeqConfig(LengthOptions, SearchConfig, MixtureConfig, TranslationConfig):
    """Options of fairseq's translation task, such as ``--eval-bleu``, and of several languages."""

    language_token: Optional[str] = field(
        default=None,
        metadata={
            "help": "symbol that sources begin with, {} in it standing for the language of the target, such as "
            "'__{}__' (default: none)"
        },
    )


@register_task("deltalm_seq2seq", dataclass=DeltaLMSeq2SeqConfig)
class DeltaLMSeq2SeqTask(MixtureTask, TranslationTask):
    """Pairs of one or several directions, sampled by temperature.

    With ``--text-languages`` half of the batches are texts with span corruption, whose targets have no sentinels, so
    that the model does not forget languages other than those of the pairs.
    """

    def __init__(self, cfg: DeltaLMSeq2SeqConfig, dictionary: FairseqDictionary) -> None:
        super().__init__(cfg, dictionary, dictionary, dictionary)
        self.pairs, self.languages = chosen_pairs(cfg), parse_languages(cfg.text_languages)

    @classmethod
    def setup_task(cls, cfg: DeltaLMSeq2SeqConfig, **_: Any) -> "DeltaLMSeq2SeqTask":
        """Load the dictionary. If no pair is given, take its languages from the names of the data files.

        Raises:
            UserError: data or dictionary are missing, or options are out of range.
        """
        folder = data_folder(cfg)
        if not cfg.lang_pairs and not (cfg.source_lang and cfg.target_lang):
            cfg.source_lang, cfg.target_lang = find_languages(folder)
        suffixes = dict.fromkeys(suffix for pair in chosen_pairs(cfg) for suffix in (pair.source, pair.target))
        paths = [folder / f"dict.{suffix}.txt" for suffix in suffixes]
        paths += [folder / language / "dict.txt" for language in parse_languages(cfg.text_languages)]
        return cls(cfg, load_common_dictionary(paths))

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> BaseFairseqModel:
        """Build the model, and determine the layout from the options or the checkpoint.

        Raises:
            UserError: options, checkpoint, dictionary and model do not fit each other.
        """
        model = super().build_model(cfg, from_checkpoint)
        saved = self.state.state_dict.get("layout", {})
        self.language_token = self.cfg.language_token or saved.get("language_token")
        problems = []
        for name in ("max_source", "max_target"):
            of_model = getattr(self, name)
            given = getattr(self.cfg, f"{name}_positions") or saved.get(f"{name}_positions") or of_model
            if not 2 <= given <= of_model:
                option = f"{as_option(name)}-positions"
                problems.append(f"{option} must be from 2 to --max-positions of the model ({of_model}), but is {given}")
            setattr(self, name, given)
        problems += self._language_problems(saved)
        if problems:
            raise UserError.of(problems)
        return model

    def _written_languages(self) -> list[str]:
        """Return the languages of all targets."""
        return list(dict.fromkeys([*(pair.language for pair in self.pairs), *self.languages]))

    def _language_problems(self, saved: Mapping[str, Any]) -> list[str]:
        """Return the problems of languages without a token; ``saved``: the layout of the loaded checkpoint, if any."""
        lacking = [
            language
            for language in self._written_languages()
            if (symbol := self.language_symbol(language)) and symbol not in self.dictionary
        ]
        if lacking and saved:
            known = "".join(f", {language}" for language in saved.get("languages", []))  # older checkpoints lack them
            found = self.cfg.target_lang or "not given"
            return [f"--target-lang must be a language of the checkpoint{known}; it is {found}"]
        return [
            f"--language-token {self.language_token}: the dictionary lacks {self.language_symbol(language)} (s2sft "
            "convert --add-language-tokens adds such)"
            for language in lacking
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the task for a checkpoint."""
        layout = {
            "language_token": self.language_token,
            "languages": self._written_languages(),
            "max_source_positions": self.max_source,
            "max_target_positions": self.max_target,
        }
        return {**super().state_dict(), "layout": layout}

    def language_symbol(self, language: str) -> str | None:
        """Return the symbol at the beginning of sources whose targets are in this language, if there is one."""
        return self.language_token.replace("{}", language) if self.language_token else None

    def form_for(self, language: str) -> EncoderDecoderForm:
        """Return the layout of pairs whose targets are in a language."""
        symbol = self.language_symbol(language)
        prefix = (self.dictionary.index(symbol),) if symbol else ()
        special = self.dictionary.eos(), self.dictionary.pad()
        return EncoderDecoderForm(prefix, *special, self.max_source, self.max_target)

    @property
    def form(self) -> EncoderDecoderForm:
        """The layout of the first pair, the only one when decoding."""
        return self.form_for(self.pairs[0].language)

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **_: Any) -> None:
        """Load a split of all pairs, and for training the plain texts, too.

        Raises:
            UserError: files are missing or truncated, or texts are too long for the model or its sentinels.
        """
        folder = data_folder(self.cfg, split, epoch)
        groups: list[list[Any]] = [[self._pair_part(folder, split, pair, combine) for pair in self.pairs]]
        if split == self.cfg.train_subset and self.languages:
            groups.append(
                [
                    self.text_part(
                        folder, split, language, prefix=self.form_for(language).prefix, target_sentinels=False
                    )
                    for language in self.languages
                ]
            )
        self.datasets[split] = self.mixture(split, groups, epoch)

    def _pair_part(self, folder: Path, split: str, pair: LanguagePair, combine: bool) -> PairPart:
        source, target = load_split(
            folder, split, pair.source, pair.target, self.dictionary, self.cfg.dataset_impl, combine
        )
        part = PairPart(str(pair), source, target, self.form_for(pair.language))
        if part.num_cut_sources or part.num_cut_targets:
            logger.warning(
                f"{split}, {pair}: {part.num_cut_sources:,} of {len(part):,} sources are cut to {self.max_source} "
                f"positions (--max-source-positions), {part.num_cut_targets:,} targets to {self.max_target} "
                "(--max-target-positions)"
            )
        return part

    def valid_step(
        self, sample: dict[str, Any], model: BaseFairseqModel, criterion: FairseqCriterion
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Validate a batch, and copy the counts of BLEU to those of its direction."""
        loss, size, output = super().valid_step(sample, model, criterion)
        if len(self.pairs) > 1:
            counts = {name: value for name, value in output.items() if name.startswith("_bleu_")}
            for pair in self.pairs:  # all pairs: workers only add up what all of them have
                is_own = str(pair) == sample["part"]
                output |= {f"{name}/{pair}": value if is_own else 0 for name, value in counts.items()}
        return loss, size, output

    def build_generator(
        self,
        models: Sequence[BaseFairseqModel],
        args: Any,
        seq_gen_cls: type[SequenceGenerator] | None = None,
        extra_gen_cls_kwargs: dict[str, Any] | None = None,
        **others: Any,
    ) -> Any:
        """Build the generator as fairseq does, or with ``--score-reference`` the scorer, and apply ``--early-stop``.

        Greedy search, sampling and ``--print-alignment`` ignore ``--early-stop`` and end as in fairseq.

        Raises:
            UserError: options of the search are out of bounds or contradict each other.
        """
        if problems := search_problems(args, self.cfg):
            raise UserError.of(problems)
        rule = early_stop(args, self.cfg)
        as_fairseq = getattr(args, "beam", 5) == 1 or getattr(args, "sampling", False)
        if rule != "fairseq" and seq_gen_cls is None and not as_fairseq and not getattr(args, "print_alignment", None):
            seq_gen_cls = EncoderDecoderSearch
            extra_gen_cls_kwargs = {
                **(extra_gen_cls_kwargs or {}),
                "nbest": getattr(args, "nbest", 1),
                "exact": rule == "exact",
            }
        generator = super().build_generator(models, args, seq_gen_cls, extra_gen_cls_kwargs, **others)
        if isinstance(getattr(generator, "search", None), Sampling):
            generator.search = SeededSampling(self.dictionary, self._sampling_options(args))
        if getattr(generator, "repeat_ngram_blocker", None) is not None:
            generator.repeat_ngram_blocker = RepeatBlocker(args.no_repeat_ngram_size)
        return generator

    def _sampling_options(self, args: Any) -> SearchOptions:
        return SearchOptions(
            beam=getattr(args, "beam", 5),
            sampling=True,
            sampling_topk=getattr(args, "sampling_topk", -1),
            sampling_topp=getattr(args, "sampling_topp", -1.0),
            seed=seed_of(args, self.cfg),
        )

    def reduce_metrics(self, logging_outputs: list[dict[str, Any]], criterion: FairseqCriterion) -> None:
        """Log the statistics, with ``--eval-bleu`` also BLEU.

        With several directions, log ``bleu_en-de`` and so on, and their mean as ``bleu``. BLEU is 0 if all hypotheses
        are empty. In this case fairseq logs no BLEU, and fails if it is the metric of the best checkpoint.
        """
        if self.cfg.eval_bleu and any("_bleu_sys_len" in output for output in logging_outputs):
            directions = [f"/{pair}" for pair in self.pairs] if len(self.pairs) > 1 else []
            for direction in directions:
                log_bleu_counts(logging_outputs, direction)
                metrics.log_derived(f"bleu_{direction[1:]}", partial(corpus_bleu, directions=(direction,)))
            metrics.log_derived("bleu", partial(corpus_bleu, directions=tuple(directions) or ("",)))
        super().reduce_metrics(logging_outputs, criterion)

    def build_dataset_for_inference(
        self, src_tokens: list[Tensor], src_lengths: list[int], constraints: Any = None
    ) -> LanguagePairDataset:
        """Return a data set of sources from an input stream, each with a final eos."""
        form = self.form
        sources = [torch.from_numpy(form.source(source.numpy()[:-1])) for source in src_tokens]
        return super().build_dataset_for_inference(sources, [len(source) for source in sources], constraints)


def chosen_pairs(cfg: DeltaLMSeq2SeqConfig) -> list[LanguagePair]:
    """Return the pairs of ``--lang-pairs``, or only the pair of ``-s`` and ``-t`` if these are given."""
    pairs = parse_pairs(cfg.lang_pairs)
    if cfg.source_lang and cfg.target_lang:
        given = (cfg.source_lang, cfg.target_lang)
        named = [pair for pair in pairs if (pair.source, pair.target) == given]
        return named or [LanguagePair(*given, cfg.target_lang)]
    return pairs or [LanguagePair("src", "tgt", cfg.target_lang or "tgt")]


def log_bleu_counts(outputs: list[dict[str, Any]], direction: str) -> None:
    """Log the sums of the counts for BLEU of a direction, such as ``/en-de``, as fairseq does for all together."""

    def total(name: str) -> int:
        return int(sum(output.get(f"_bleu_{name}{direction}", 0) for output in outputs))

    for name in ("counts", "totals"):
        metrics.log_scalar(f"_bleu_{name}{direction}", np.array([total(f"{name}_{n}") for n in range(EVAL_BLEU_ORDER)]))
    for name in ("sys_len", "ref_len"):
        metrics.log_scalar(f"_bleu_{name}{direction}", total(name))


def corpus_bleu(meters: Mapping[str, Any], directions: Sequence[str] = ("",)) -> float:
    """Return sacreBLEU's BLEU from counts that were summed over batches and workers.

    Args:
        meters: fairseq's meters.
        directions: the directions over which BLEU is averaged; "" stands for all pairs together, as fairseq counts.
    """
    scores = []
    for direction in directions:
        if f"_bleu_totals{direction}" not in meters:
            return 0.0
        counts, totals = (meters[f"_bleu_{name}{direction}"].sum.tolist() for name in ("counts", "totals"))
        sys_len, ref_len = (int(meters[f"_bleu_{name}{direction}"].sum) for name in ("sys_len", "ref_len"))
        scores.append(BLEU.compute_bleu(counts, totals, sys_len, ref_len, smooth_method="exp").score)
    return round(mean(scores), 2)
