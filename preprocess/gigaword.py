"""Gigaword headlines to text files of pairs.

DIR holds sumdata (train/train.article.txt ...), UniLM's org_data (train.src.txt ...) or {train,valid,test}.{src,tgt}.
"""

import argparse
import sys
from collections.abc import Iterator

from s2sft_fairseq.corpora.command_line import Splits, make_parser, run
from s2sft_fairseq.corpora.example import Example
from s2sft_fairseq.corpora.line_aligned import GIGAWORD, GIGAWORD_10K, read_line_aligned, sample
from s2sft_fairseq.corpora.malformed import Malformed

SMALL = 10_000


def read(options: argparse.Namespace, malformed: Malformed) -> Splits:
    """All splits, the training set cut down to `SMALL` pairs where that is asked for."""
    if options.size == "full":
        return read_line_aligned(options.raw, GIGAWORD, malformed)
    splits = read_line_aligned(options.raw, GIGAWORD_10K, malformed)
    return {**splits, "train": _draw(splits["train"], malformed, options.seed)}


def _draw(examples: Iterator[Example], malformed: Malformed, seed: int) -> Iterator[Example]:
    """Yield `SMALL` well-formed examples, and tell if there are fewer."""
    drawn = list(sample(_well_formed(examples, malformed), SMALL, seed))
    if len(drawn) < SMALL:
        print(f"--size 10k takes all {len(drawn):,} training pairs, for there are not {SMALL:,}", file=sys.stderr)
    yield from drawn


def _well_formed(examples: Iterator[Example], malformed: Malformed) -> Iterator[Example]:
    for example in examples:
        with malformed.record(example.path, example.where):
            example.source_line(), example.reference_lines()
            yield example


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--size",
        choices=("full", "10k"),
        default="full",
        help="10k: UniLM's train.src.10k where DIR has it, or else as many pairs drawn (default: full)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed of that draw (default: 1)")
    run(parser, read)


if __name__ == "__main__":
    main()
