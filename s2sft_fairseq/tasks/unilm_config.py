"""Options of the `unilm_seq2seq` task.

Types are written ``Optional[...]``, the only form that fairseq's command line supports. An option whose default is None
has the value of the loaded checkpoint, if there is one, else the default in its help.
"""

from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import ChoiceEnum
from omegaconf import II

from s2sft_fairseq.inference.options import UnilmSearchConfig
from s2sft_fairseq.models.inference import QUANTIZATIONS
from s2sft_fairseq.objectives.objective import CORRUPTIONS, OBJECTIVES
from s2sft_fairseq.tasks.options import (
    BlockOptions,
    DataOptions,
    FieldCutOptions,
    InfillingOptions,
    LengthOptions,
    PlaceholderOptions,
    PrecisionOptions,
    ReplacementOptions,
    SegmentOptions,
)


@dataclass
class UnilmSeq2SeqConfig(
    DataOptions,
    SegmentOptions,
    LengthOptions,
    FieldCutOptions,
    PlaceholderOptions,
    ReplacementOptions,
    InfillingOptions,
    BlockOptions,
    PrecisionOptions,
    UnilmSearchConfig,
):
    """Options of data, layout, corruption, and of decoding beyond fairseq's."""

    source_lang: Optional[str] = field(
        default=None,
        metadata={"help": "suffix of the source files (default: read off the data)", "argparse_alias": "-s"},
    )
    target_lang: Optional[str] = field(
        default=None,
        metadata={"help": "suffix of the target files (default: read off the data)", "argparse_alias": "-t"},
    )
    source_start: Optional[ChoiceEnum(["cls", "sep"])] = field(  # type: ignore[valid-type]
        default=None,
        metadata={
            "help": "symbol that sources begin with; sep: the one that they end with, as in mmBERT (default: cls)"
        },
    )
    finetune_method: Optional[str] = field(
        default=None,
        metadata={
            "help": f"how target tokens are predicted: {', '.join(sorted(OBJECTIVES))}, or one that "
            "your --user-dir registers (default: pseudo_masked)"
        },
    )
    corruption: ChoiceEnum(list(CORRUPTIONS)) = field(  # type: ignore[valid-type]
        default="paper",
        metadata={
            "help": "preset of the corruption. paper: 'masked' and 'pseudo_masked' mask half of the target. original: "
            "the program of s2s-ft, which corrupts half of the target in every method, 80 %% placeholder, 10 %% "
            "random, 10 %% kept, pseudo tokens too; neither corrupts for 'infilling'"
        },
    )
    target_mask_prob: Optional[float] = field(
        default=None, metadata={"help": "probability that a target token is corrupted (default: the preset's)"}
    )
    source_mask_prob: Optional[float] = field(
        default=None, metadata={"help": "probability that a source token is corrupted (default: 0)"}
    )
    max_masked_tokens: int = field(
        default=0, metadata={"help": "masked fine-tuning: maximum number of masked tokens of a target; 0: no limit"}
    )
    loss_tokens: ChoiceEnum(["all", "noised"]) = field(  # type: ignore[valid-type]
        default="all",
        metadata={
            "help": "infilling: target tokens that the loss counts. noised: only those that --noise-prob replaces, as "
            "in the masking fine-tuning of ERNIE-GEN's Table 7 (default: all)"
        },
    )
    source_loss_weight: float = field(
        default=0.0,
        metadata={
            "help": "causal, with a language model (--source-visibility causal): weight of a source token, which "
            "predicts the next one, in the loss; a target token weighs 1. The sum is divided by the number of target "
            "tokens; 0: targets alone"
        },
    )
    placeholder_segment: Optional[int] = field(
        default=None, metadata={"help": "segment id of placeholders (default: that of the target)"}
    )
    max_batch_memory: Optional[float] = field(
        default=None,
        metadata={
            "help": "estimated memory in GiB for decoding a batch, without the model (default: 60 %% of what is free)"
        },
    )
    quantize: ChoiceEnum(list(QUANTIZATIONS)) = field(  # type: ignore[valid-type]
        default="none",
        metadata={
            "help": "decoding on the CPU: int8 multiplies in 8 bits, which is faster and changes the scores a little"
        },
    )
    beam: int = II("generation.beam")
    score_reference: bool = II("generation.score_reference")
