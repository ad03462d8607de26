"""Gigaword headlines (Rush et al., 2015): all pairs to train on, or 10,000 of them."""

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from s2sft_fairseq.corpora.example import Example
from s2sft_fairseq.corpora.line_aligned import GIGAWORD, GIGAWORD_10K, read_line_aligned, sample
from s2sft_fairseq.corpora.malformed import Malformed

SMALL = 10_000


def read_gigaword(folder: Path, size: str, seed: int, malformed: Malformed) -> dict[str, Iterator[Example]]:
    """All splits; with the size ``10k`` the training set has `SMALL` pairs, drawn where UniLM's own are not there."""
    if size == "full":
        return read_line_aligned(folder, GIGAWORD, malformed)
    splits = read_line_aligned(folder, GIGAWORD_10K, malformed)
    return {**splits, "train": _draw(splits["train"], malformed, seed)}


def _draw(examples: Iterable[Example], malformed: Malformed, seed: int) -> Iterator[Example]:
    """Yield `SMALL` well-formed examples, and tell if there are fewer."""
    drawn = list(sample(_well_formed(examples, malformed), SMALL, seed))
    if len(drawn) < SMALL:
        print(f"--size 10k takes all {len(drawn):,} training pairs, for there are not {SMALL:,}", file=sys.stderr)
    yield from drawn


def _well_formed(examples: Iterable[Example], malformed: Malformed) -> Iterator[Example]:
    for example in examples:
        with malformed.record(example.path, example.where):
            example.source_line(), example.reference_lines()
            yield example
