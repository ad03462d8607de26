"""Groups of options that tasks inherit, so that each option is declared once.

Types are written ``Optional[...]``, the only form that fairseq's command line supports. None means that the checkpoint
or the task determines the value; the help names the defaults of the tasks.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import II, MISSING

from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.objectives.blocks import LENGTHS, LONGEST, SCHEDULES, WEIGHTS


@dataclass
class DataOptions(FairseqDataclass):
    """Options of the data."""

    data: str = field(
        default=MISSING,
        metadata={
            "help": "folder that s2sft preprocess wrote; of several, separated by colons, each epoch reads the next one"
        },
    )
    seed: int = II("common.seed")
    train_subset: str = II("dataset.train_subset")
    dataset_impl: Any = II("dataset.dataset_impl")


@dataclass
class PrecisionOptions(FairseqDataclass):
    """Options of the precision on a GPU, besides fairseq's ``--bf16``, ``--fp16`` and ``--amp``, and of overflows."""

    float32: bool = field(
        default=False,
        metadata={
            "help": "train and decode in float32 on a GPU too (default: --bf16 on GPUs from compute capability 8.0 on)"
        },
    )
    skip_nonfinite_updates: int = field(
        default=0,
        metadata={
            "help": "leave out up to N updates in a row whose gradients are NaN or infinite, and end the training only "
            "then; on GPUs N counts intervals of --log-interval updates (default: 0)",
            "argparse_type": int,
        },
    )


def data_folder(cfg: DataOptions, split: str | None = None, epoch: int = 1) -> Path:
    """Return the data folder. With several, the training set of each epoch is from the next one in turn."""
    folders = utils.split_paths(cfg.data)
    if split is None or split != cfg.train_subset:
        return Path(folders[0])
    return Path(folders[(epoch - 1) % len(folders)])


@dataclass
class TextBlockOptions(FairseqDataclass):
    """Options of cutting plain text into texts. A line is a paragraph, and an empty line ends a document."""

    tokens_per_sample: Optional[int] = field(
        default=None,
        metadata={
            "help": "most tokens of a text, special symbols not counted; documents are cut (default: 508; of DeltaLM "
            "512, before spans are taken out)"
        },
    )
    min_tokens_per_sample: int = field(
        default=8, metadata={"help": "fewest tokens of a text; shorter documents are left out"}
    )


def text_block_problems(cfg: TextBlockOptions) -> Iterator[str]:
    """Yield the problems of the options, a sentence each."""
    least, most = cfg.min_tokens_per_sample, cfg.tokens_per_sample
    if least < 2:
        yield f"--min-tokens-per-sample must be at least 2, but is {least}"
    if most < 2 * least:
        # A document that is slightly too long is cut into halves, which must not be too short.
        yield f"--tokens-per-sample must be at least twice --min-tokens-per-sample ({least}), but is {most}"


@dataclass
class PlaceholderOptions(FairseqDataclass):
    """Options of placeholders and of the segments of targets."""

    placeholder: Optional[str] = field(
        default=None,
        metadata={
            "help": "symbol that stands for a token to predict (default: the mask symbol; for infilling and ERNIE-GEN "
            "[ATTN] where the dictionary has it)"
        },
    )
    target_segment: Optional[int] = field(
        default=None,
        metadata={"help": "segment id of the target; of UniLMv2's pre-training, of the second text (default: 1)"},
    )


@dataclass
class ReplacementOptions(FairseqDataclass):
    """Probabilities of replacing or keeping corrupted tokens; the others become placeholders."""

    random_prob: Optional[float] = field(
        default=None,
        metadata={
            "help": "probability that a corrupted token becomes a random one (default: the preset's; UniLMv2's "
            "pre-training: 0.1)"
        },
    )
    keep_prob: Optional[float] = field(
        default=None,
        metadata={
            "help": "probability that a corrupted token is kept (default: the preset's; UniLMv2's pre-training: 0.1)"
        },
    )


@dataclass
class InfillingOptions(FairseqDataclass):
    """Options of ERNIE-GEN's noise and span-by-span flow (sections 3.2 and 3.3 of the paper)."""

    noise_prob: Optional[float] = field(
        default=None,
        metadata={
            "help": "infilling, causal: probability that a target token, as content, becomes noise; ERNIE-GEN has 0.5 "
            "to 0.7 (default: 0; pre-training: 0.05, without --span-vocab 0.2, as in Table 7)"
        },
    )
    noise_symbol: Optional[str] = field(
        default=None, metadata={"help": "infilling, causal: symbol that is the noise (default: random tokens)"}
    )
    span_vocab: Optional[str] = field(
        default=None,
        metadata={
            "help": "infilling and pseudo_masked: file that s2sft span-vocab wrote; targets are predicted span by "
            "span, with infilling in a second flow"
        },
    )
    word_flow_weight: Optional[float] = field(
        default=None,
        metadata={
            "help": "infilling with --span-vocab, and blocks: weight W of the word flow in the loss; the other flow "
            "has 1 - W (default: 0.5; blocks of random length: 0.7, of one length: 0, no word flow)"
        },
    )


@dataclass
class BlockOptions(FairseqDataclass):
    """Options of cutting targets into blocks, whose tokens are predicted in any order."""

    block_length: Optional[str] = field(
        default=None,
        metadata={
            "help": f"blocks: tokens of a block of the target: {LENGTHS}; random: up to {LONGEST} or N, each length "
            "equally likely; target: the whole target (default: random)"
        },
    )
    noise_schedule: Optional[ChoiceEnum(list(SCHEDULES))] = field(  # type: ignore[valid-type]
        default=None,
        metadata={
            "help": "blocks: how much of a block is masked. uniform: each share as likely; cosine: more often much of "
            "it; full: all of it (default: uniform)"
        },
    )
    block_loss_weight: Optional[ChoiceEnum(list(WEIGHTS))] = field(  # type: ignore[valid-type]
        default=None,
        metadata={
            "help": "blocks: weights of the masked tokens. even: all the same; bound: one over their share of the "
            "block, so that the loss bounds the likelihood, as in MDLM (default: even)"
        },
    )


def symbol_problems(options: dict[str, str | None], dictionary: FairseqDictionary) -> Iterator[str]:
    """Yield a sentence for each option that names a symbol that the dictionary lacks."""
    for option, symbol in options.items():
        if symbol is not None and symbol not in dictionary:
            yield f"{option} must be a symbol of the dictionary, but {symbol!r} is not"


@dataclass
class SegmentOptions(FairseqDataclass):
    """Options of the segments of a source."""

    source_segments: Optional[str] = field(
        default=None,
        metadata={
            "help": "segment id of each field of the source, such as 0,1; the last one holds for further fields. With "
            ",... at the end, such as 0,1,..., the ids take turns, and the last field has the last one. dialogue: role "
            "and turn of each, for models with --num-roles; the first field is the persona or knowledge (default: 0; "
            "of texts to classify or to search 0,1 where the model has segments)"
        },
    )


@dataclass
class SourceLengthOptions(FairseqDataclass):
    """Options of the length of a source."""

    max_source_positions: Optional[int] = field(
        default=None,
        metadata={
            "help": "longest source, special symbols included; longer ones are cut (default: 464, of infilling 463; "
            "of texts to classify 128; of DeltaLM the model's)"
        },
    )


@dataclass
class LengthOptions(SourceLengthOptions):
    """Options of the lengths of a source and of a target."""

    max_target_positions: Optional[int] = field(
        default=None,
        metadata={
            "help": "longest target, special symbols included; longer ones are cut (default: 48; of DeltaLM the "
            "model's)"
        },
    )


@dataclass
class FieldCutOptions(FairseqDataclass):
    """Options of cutting the fields of a long source."""

    source_truncation: Optional[str] = field(
        default=None,
        metadata={
            "help": "side that long sources lose, left or right. Several, such as right,left: each field is cut on its "
            "own side, the longest first; the last one holds for further fields. With --source-segments dialogue, "
            "right,left: turns go first, the oldest first, and then the right end of the knowledge (default: right; "
            "for dialogues right,left; of texts to classify right,right)"
        },
    )
    source_field_positions: Optional[str] = field(
        default=None,
        metadata={
            "help": "most positions of each field of the source, its [SEP] included, such as 350,32; longer ones are "
            "cut on the side that --source-truncation says. 0: no limit; the last one holds for further fields "
            "(default: 0)"
        },
    )
