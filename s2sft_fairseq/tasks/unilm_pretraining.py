"""The task of pre-training as UniLMv2 does it, from an encoder's checkpoint or from random weights."""

from dataclasses import dataclass, field, replace

import numpy as np
from fairseq.dataclass import ChoiceEnum
from fairseq.tasks import register_task

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.objectives.finetuning import NO_CORRUPTION
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.packing import PackedExamples
from s2sft_fairseq.objectives.pseudo_masked_lm import LANGUAGE_MODELS, BlockwiseMasking, pseudo_masked_lm
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm, SourceFields
from s2sft_fairseq.tasks.layout import placeholder_id
from s2sft_fairseq.tasks.options import ReplacementOptions
from s2sft_fairseq.tasks.text_pretraining import TextPretrainingConfig, TextPretrainingTask, parse_range


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
    """Plain text of which some tokens are masked, predicted all at once and one factorization step after the other."""

    # [CLS] S1 [SEP] S2 [SEP].
    special_symbols = 3

    def __init__(self, cfg: UnilmPretrainingConfig, dictionary: PretrainedDictionary) -> None:
        self.masking = BlockwiseMasking(cfg.mask_ratio, cfg.block_prob, parse_range(cfg.block_lengths))
        self.corruption = replace(
            NO_CORRUPTION,
            random_prob=0.1 if cfg.random_prob is None else cfg.random_prob,
            keep_prob=0.1 if cfg.keep_prob is None else cfg.keep_prob,
        )
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
        """Return what is wrong with the options of the objective, a sentence each."""
        return [*self.masking.problems(self.cfg.block_lengths), *self.corruption.problems()]

    def packed_sizes(self, sizes: np.ndarray) -> np.ndarray:
        """Return the positions of packed texts at most, from their tokens (texts,)."""
        copies = 2 if self.language_model.has_placeholders else 0
        return sizes + self.special_symbols + copies * self.masking.most_masked(sizes)

    def pack(self, text: Ragged, draws: Draws) -> PackedExamples:
        """Make what the model is trained on of the ids of texts, a row for each."""
        laid_out = text.between([self.form.cls], [self.form.sep])
        return pseudo_masked_lm(
            laid_out, self.language_model, self.masking, self.form, self.corruption, draws, mask=self.dictionary.mask()
        )
