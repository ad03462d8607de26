"""The pre-training tasks of UniLMv2 and ERNIE-GEN, from a checkpoint or from random weights."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task

from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.errors import as_option
from s2sft_fairseq.objectives.blocks import parse_range
from s2sft_fairseq.objectives.ernie_gen import Fragments, causal_fragments, infilled_fragments
from s2sft_fairseq.objectives.finetuning import NO_CORRUPTION
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.packing import PackedExamples
from s2sft_fairseq.objectives.pseudo_masked_lm import (
    LANGUAGE_MODELS,
    REPLACEMENT,
    BlockwiseMasking,
    pseudo_masked_lm,
)
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm, SourceFields
from s2sft_fairseq.spans.vocabulary import load_spans
from s2sft_fairseq.tasks.layout import placeholder_id
from s2sft_fairseq.tasks.options import InfillingOptions, ReplacementOptions, symbol_problems
from s2sft_fairseq.tasks.text_pretraining import TextPretrainingConfig, TextPretrainingTask

GENERATIONS = ["infilling", "typical"]
NOISE, NOISE_WITHOUT_SPANS = 0.05, 0.2
"""The paper's rates: with spans of section 4.1; without spans, when pre-training is easier, of Table 7's caption."""


@dataclass
class UnilmPretrainingConfig(TextPretrainingConfig, ReplacementOptions):
    """Options of the objective; the defaults are those of the paper (Algorithm 1, sections 3.3 and 4.1)."""

    language_model: ChoiceEnum(list(LANGUAGE_MODELS)) = field(  # type: ignore[valid-type]
        default="ae+par",
        metadata={
            "help": "what is trained: autoencoding (ae), a token or a block at a time (ar, par), or two of them in one "
            "pass (default: ae+par)"
        },
    )
    mask_ratio: float = field(default=0.15, metadata={"help": "share of the tokens that are masked (default: 0.15)"})
    block_prob: float = field(
        default=0.4,
        metadata={"help": "probability that a factorization step is a block of tokens, and not one (default: 0.4)"},
    )
    block_lengths: str = field(default="2-6", metadata={"help": "range of the lengths of blocks (default: 2-6)"})


@register_task("unilm_pretraining", dataclass=UnilmPretrainingConfig)
class UnilmPretrainingTask(TextPretrainingTask):
    """Plain text with masked tokens, which are predicted all at once and in factorization steps."""

    # [CLS] S1 [SEP] S2 [SEP].
    special_symbols = 3
    both_directions = "the pre-training of UniLMv2, which predicts masked tokens from both sides"

    def __init__(self, cfg: UnilmPretrainingConfig, dictionary: FairseqDictionary) -> None:
        self.masking = BlockwiseMasking(cfg.mask_ratio, cfg.block_prob, parse_range(cfg.block_lengths))
        given = {name: value for name in ("random_prob", "keep_prob") if (value := getattr(cfg, name)) is not None}
        self.corruption = replace(REPLACEMENT, **given)
        super().__init__(cfg, dictionary)
        self.language_model = LANGUAGE_MODELS[str(cfg.language_model)]
        self.flows = self.language_model.flows
        self.divider = dictionary.eos()
        self.form = SequenceForm(
            cls=dictionary.bos(),
            sep=dictionary.eos(),
            pad=dictionary.pad(),
            placeholder=placeholder_id(cfg.placeholder, OBJECTIVES["pseudo_masked"], dictionary),
            vocab_size=len(dictionary),
            fields=SourceFields(segments=(0, cfg.target_segment)),
        )

    def option_problems(self) -> list[str]:
        """Return the problems of the objective's options, a sentence each."""
        return [*self.masking.problems(self.cfg.block_lengths), *self.corruption.problems()]

    def packed_sizes(self, sizes: np.ndarray) -> np.ndarray:
        """Return the maximum number of positions of packed texts, from their numbers of tokens (texts,)."""
        copies = 2 if self.language_model.has_placeholders else 0
        return sizes + self.special_symbols + copies * self.masking.most_masked(sizes)

    def pack(self, text: Ragged, draws: Draws) -> PackedExamples:
        """Return the packed training examples of texts, given as rows of ids."""
        laid_out = text.between([self.form.cls], [self.form.sep])
        return pseudo_masked_lm(
            laid_out, self.language_model, self.masking, self.form, self.corruption, draws, mask=self.dictionary.mask()
        )


@dataclass
class ErnieGenPretrainingConfig(TextPretrainingConfig, InfillingOptions):
    """Options of the objective; the defaults are those of the paper (sections 3.1, 3.3, 4.1)."""

    fragment_budget: float = field(
        default=0.25, metadata={"help": "share of a text that is taken out of it and predicted (default: 0.25)"}
    )
    fragment_lengths: str = field(
        default="1-4,4-32",
        metadata={
            "help": "ranges of the lengths of fragments, of which one is drawn for each text (default: 1-4,4-32)"
        },
    )
    fragment_shares: str = field(default="0.4,0.6", metadata={"help": "probability of each range (default: 0.4,0.6)"})
    generation: ChoiceEnum(GENERATIONS) = field(  # type: ignore[valid-type]
        default="infilling",
        metadata={
            "help": "where target tokens are predicted: at placeholders (infilling), or each at the token before it "
            "(typical), as in Table 8 (default: infilling)"
        },
    )


@register_task("ernie_gen_pretraining", dataclass=ErnieGenPretrainingConfig)
class ErnieGenPretrainingTask(TextPretrainingTask):
    """Multi-granularity fragments of plain text, predicted word by word and span by span from content with noise."""

    # [CLS] source [SEP] and the [CLS] and [SEP] of the target.
    special_symbols = 4

    def __init__(self, cfg: ErnieGenPretrainingConfig, dictionary: FairseqDictionary) -> None:
        self.fragments = parse_fragments(cfg)
        self.is_typical = str(cfg.generation) == "typical"
        symbol = cfg.noise_symbol
        noise = NOISE if cfg.span_vocab is not None else NOISE_WITHOUT_SPANS
        self.corruption = replace(
            NO_CORRUPTION,
            noise_prob=noise if cfg.noise_prob is None else cfg.noise_prob,
            noise_symbol=None if symbol is None or symbol not in dictionary else dictionary.index(symbol),
        )
        super().__init__(cfg, dictionary)
        # Typical generation prepares for causal fine-tuning, and has its layout.
        objective = OBJECTIVES["causal" if self.is_typical else "infilling"]
        self.form = SequenceForm(
            cls=dictionary.bos(),
            sep=dictionary.eos(),
            pad=dictionary.pad(),
            placeholder=placeholder_id(cfg.placeholder, OBJECTIVES["infilling"], dictionary),
            vocab_size=len(dictionary),
            starts_with=objective.starts_with,
            target_segment=cfg.target_segment,
            placeholder_segment=cfg.target_segment,
        )
        self.spans = None
        if cfg.span_vocab is not None:
            self.spans = load_spans(Path(cfg.span_vocab), dictionary).boundaries
            objective = objective.with_spans(self.spans, cfg.word_flow_weight)
        self.flows = objective.flows
        self.positions_per_target = objective.positions_per_target

    def option_problems(self) -> list[str]:
        """Return the problems of the objective's options, a sentence each."""
        cfg = self.cfg
        problems = [*self.fragments.problems(cfg.fragment_lengths), *self.corruption.problems()]
        problems += symbol_problems({"--noise-symbol": cfg.noise_symbol}, self.dictionary)
        if self.is_typical:
            problems += [
                f"{as_option(name)} does nothing with --generation typical, which has no placeholders"
                for name in ("span_vocab", "placeholder")
                if getattr(cfg, name) is not None
            ]
        if cfg.word_flow_weight is not None and not 0 <= cfg.word_flow_weight <= 1:
            problems.append(f"--word-flow-weight must be between 0 and 1, but is {cfg.word_flow_weight:g}")
        return problems

    def packed_sizes(self, sizes: np.ndarray) -> np.ndarray:
        """Return the numbers of positions of packed texts, from their numbers of tokens (texts,)."""
        targets = self.fragments.target_length(sizes) + 1
        return sizes - targets + 1 + self.form.source_specials + self.positions_per_target * targets

    def pack(self, text: Ragged, draws: Draws) -> PackedExamples:
        """Return the packed training examples of texts, given as rows of ids."""
        if self.is_typical:
            return causal_fragments(text, self.fragments, self.form, self.corruption, draws)
        return infilled_fragments(text, self.fragments, self.form, self.corruption, draws, spans=self.spans)


def parse_fragments(cfg: ErnieGenPretrainingConfig) -> Fragments:
    """Read the options of fragments. Malformed numbers become values that `Fragments.problems` reports."""
    lengths = tuple(map(parse_range, cfg.fragment_lengths.split(",")))
    try:
        shares = tuple(float(text) for text in cfg.fragment_shares.split(","))
    except ValueError:
        shares = ()
    return Fragments(cfg.fragment_budget, lengths, shares)
