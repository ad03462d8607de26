"""The cells of `generate.py`, and the keys of their records."""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

SYSTEMS = ("ours", "original", "bert2bert")
PRECISIONS = ("float32", "bfloat16", "int8")
_LENGTHS = re.compile(r"(\d+)(?:\.\.(\d+))?/(\d+)")


def parse_lengths(text: str) -> tuple[tuple[int, int], int]:
    """Parse ``60..464/48`` or ``608/160``; return the least and the most source positions, and the target tokens.

    Raises:
        ValueError: if the text has another form, or the lengths are too small.
    """
    match = _LENGTHS.fullmatch(text)
    if match is None:
        raise ValueError(f"lengths must look like 60..464/48 or 608/160, but are {text}")
    low, high, target = int(match[1]), int(match[2] or match[1]), int(match[3])
    if not 2 <= low <= high or target < 2:
        raise ValueError(f"sources must have 2 positions or more, targets 2 tokens or more, but the lengths are {text}")
    return (low, high), target


@dataclass(frozen=True)
class Cell:
    """One system on one task."""

    config: str
    lengths: str
    beam: int
    batch: int
    system: str
    precision: str
    sentences: int
    vocab: int
    device: str
    threads: int
    seed: int
    baseline_steps: int
    """Number of steps of each batch that the original's loop runs; 0: all."""
    repeats: int

    @cached_property
    def source_lengths(self) -> tuple[int, int]:
        """The least and the most positions of a source."""
        return parse_lengths(self.lengths)[0]

    @cached_property
    def target_length(self) -> int:
        """Tokens of every target."""
        return parse_lengths(self.lengths)[1]


TASK = ("config", "lengths", "beam", "batch", "sentences", "vocab", "device", "threads", "seed")
"""The fields that two systems must share to be compared."""


def key_of(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return the key of a record: records with equal keys measure the same thing."""
    return tuple(record[name] for name in (*TASK, "system", "precision", "baseline_steps"))


def task_of(record: dict[str, Any]) -> tuple[Any, ...]:
    """Return the task of a record, without the system."""
    return tuple(record[name] for name in TASK)
