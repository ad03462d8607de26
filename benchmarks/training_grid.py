"""The cells of `train.py`, and the keys of their records."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

SYSTEMS = ("ours", "plain")
FULL_LOGITS = "full_logits"  # plain, but with logits at every position; measured on request
FACTORED = "factored"  # ours with --factored-moments; measured on request
SDPA = "sdpa"  # plain, but with attention of PyTorch; measured on request
PRECISIONS = ("float32", "bfloat16")
METHODS = ("causal", "masked", "pseudo_masked", "pseudo_masked_relative")
RELATIVE_BINS, FURTHEST_DISTANCE = 32, 128
MIN_POSITIONS = 512
MASKED_SHARE = 0.5
"""Share of each target that masked fine-tuning masks: exactly this, rounded down, but at least one token."""


class Encoder(NamedTuple):
    """Sizes of a model with BERT's layers."""

    layers: int
    width: int
    ffn_width: int
    heads: int


# Architectures of the package that differ from BERT only in their sizes. They are repeated here, because the plain
# system must not import the package.
CONFIGURATIONS = {
    "unilm_tiny": Encoder(2, 128, 512, 2),
    "minilm_l6_h384": Encoder(6, 384, 1536, 12),
    "minilm_l12_h384": Encoder(12, 384, 1536, 12),
    "unilm_base": Encoder(12, 768, 3072, 12),
    "unilm_large": Encoder(24, 1024, 4096, 16),
}


class Quantiles(NamedTuple):
    """A distribution of lengths: each share (0 to 1) of them is at most as long as its length, linear in between."""

    shares: tuple[float, ...]
    lengths: tuple[int, ...]

    def at(self, share: float) -> int:
        """Return the length that this share does not exceed."""
        points = list(zip(self.shares, self.lengths, strict=True))
        (low, shortest), (high, longest) = next(pair for pair in pairwise(points) if share <= pair[1][0])
        return round(shortest + (longest - shortest) * (share - low) / (high - low))


class Lengths(NamedTuple):
    """Positions of sources and targets, special symbols counted."""

    source: Quantiles
    target: Quantiles

    @property
    def max_source(self) -> int:
        """The most positions of a source, to which the plain system pads."""
        return self.source.lengths[-1]

    @property
    def max_target(self) -> int:
        """The most positions of a target."""
        return self.target.lengths[-1]


_SQUAD_SHARES = (0, 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99, 1)

NAMED_LENGTHS = {
    # The 75,722 training pairs of SQuAD question generation (Du et al., 2017; passage, answer -> question) in word
    # pieces of BERT's uncased vocabulary, cut as in the s2s-ft paper (appendix A) to 384 and 32; means 164 and 13.
    "squad_qg": Lengths(
        Quantiles(_SQUAD_SHARES, (30, 48, 81, 124, 152, 193, 284, 377, 384)),
        Quantiles(_SQUAD_SHARES, (2, 7, 8, 10, 13, 15, 21, 26, 32)),
    )
}
DEFAULT_BATCH = {"squad_qg": 16}
_LENGTHS = re.compile(r"(\d+)(?:\.\.(\d+))?/(\d+)(?:\.\.(\d+))?")


def parse_lengths(text: str) -> Lengths:
    """Parse ``60..464/8..48``, ``464/48`` or a name: source / target positions, uniform between least and most.

    Raises:
        ValueError: if the text has another form, or the lengths are too small.
    """
    if text in NAMED_LENGTHS:
        return NAMED_LENGTHS[text]
    match = _LENGTHS.fullmatch(text)
    if match is None:
        names = ", ".join(NAMED_LENGTHS)
        raise ValueError(f"lengths must look like 60..464/8..48 or 464/48, or be one of {names}, but are {text}")
    source, target = (Quantiles((0, 1), (int(match[first]), int(match[first + 1] or match[first]))) for first in (1, 3))
    for quantiles, least in ((source, 3), (target, 2)):
        if not least <= quantiles.lengths[0] <= quantiles.lengths[1]:
            raise ValueError(f"sources must have 3 positions or more, targets 2 or more, but the lengths are {text}")
    return Lengths(source, target)


@dataclass(frozen=True)
class Cell:
    """One system on one task."""

    config: str
    method: str
    lengths: str
    batch: int
    system: str
    vocab: int
    device: str
    threads: int
    seed: int
    updates: int
    """Timed updates, after one warm-up update."""
    precision: str = "float32"
    """Precision of the factors of matrix products; all else is float32. On a GPU, ours also has 16-bit weights."""
    extra: str = ""
    """Further options of ours, separated by spaces."""

    @property
    def encoder(self) -> Encoder:
        """The sizes of the model."""
        return CONFIGURATIONS[self.config]

    @property
    def objective(self) -> str:
        """The fine-tuning method without ``_relative``."""
        return self.method.removesuffix("_relative")

    @property
    def relative(self) -> bool:
        """Whether the model has a relative position bias."""
        return self.method.endswith("_relative")

    @cached_property
    def shape(self) -> Lengths:
        """The lengths, parsed."""
        return parse_lengths(self.lengths)

    @property
    def positions(self) -> int:
        """The number of positions that a model needs."""
        return max(MIN_POSITIONS, self.shape.max_source + self.shape.max_target)

    def blocks(self, source: int, target: int) -> Sequence[int]:
        """Return the lengths of the sections of an example: source, target, and placeholders if the method has them."""
        return (source, target, target) if self.objective == "pseudo_masked" else (source, target)

    def labels(self, target: int) -> int:
        """Return the number of predicted tokens of an example."""
        return max(1, int(MASKED_SHARE * target)) if self.objective == "masked" else target


TASK = ("config", "method", "lengths", "batch", "vocab", "device", "threads", "seed")
"""The fields that two systems must share to be compared."""


def key_of(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return the key of a record: records with equal keys measure the same thing."""
    return (*task_of(record), *system_of(record))


def system_of(record: dict[str, Any]) -> tuple[str, str]:
    """Return the system of a record and its precision."""
    return record["system"], record.get("precision", "float32")


def task_of(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return the task of a record, without the system."""
    return tuple(record[name] for name in TASK)


def describe(cell: Cell) -> str:
    """Return the name of a cell."""
    precision = "" if cell.precision == "float32" else f" {cell.precision}"
    vocabulary = f" vocabulary {cell.vocab}" if cell.vocab != 30522 else ""
    return f"{cell.config} {cell.method} {cell.lengths} batch {cell.batch}{vocabulary} {cell.system}{precision}"
