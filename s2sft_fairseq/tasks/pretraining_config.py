"""Options that the pre-training tasks have in common.

The types are spelled ``Optional[...]`` because fairseq makes its command line from them and knows no other spelling.
"""

from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import FairseqDataclass
from omegaconf import II, MISSING


@dataclass
class PretrainingConfig(FairseqDataclass):
    """Where plain text is, and how it is cut."""

    data: str = field(
        default=MISSING,
        metadata={
            "help": "folder that s2sft preprocess --only-source wrote from text, a paragraph a line, with an empty "
            "line behind each document; several, separated by colons, are read in turn, one an epoch"
        },
    )
    tokens_per_sample: int = field(
        default=508, metadata={"help": "most tokens of a text, special symbols not counted; documents are cut"}
    )
    min_tokens_per_sample: int = field(
        default=8, metadata={"help": "fewest tokens of a text; shorter documents are left out"}
    )
    placeholder: Optional[str] = field(
        default=None,
        metadata={
            "help": "symbol that stands for a token to predict (default: the mask symbol, for ERNIE-GEN [ATTN] where "
            "the dictionary has it)"
        },
    )
    target_segment: int = field(
        default=1, metadata={"help": "segment id of the target, or of the second text (default: 1)"}
    )
    seed: int = II("common.seed")
    train_subset: str = II("dataset.train_subset")
    dataset_impl: Any = II("dataset.dataset_impl")


def parse_range(text: str) -> tuple[int, int]:
    """Read a range of lengths, such as ``2-6``; what is none becomes 0-0, which is refused."""
    least, _, greatest = text.partition("-")
    return (int(least), int(greatest)) if least.isdecimal() and greatest.isdecimal() else (0, 0)
