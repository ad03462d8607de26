"""Gigaword headlines to text files of pairs.

DIR holds sumdata (train/train.article.txt ...), UniLM's org_data (train.src.txt ...) or {train,valid,test}.{src,tgt}.
"""

import argparse

from s2sft_fairseq.corpora.command_line import Splits, make_parser, run
from s2sft_fairseq.corpora.line_aligned import GIGAWORD, GIGAWORD_10K, read_line_aligned, sample
from s2sft_fairseq.corpora.malformed import Malformed

SMALL = 10_000


def read(options: argparse.Namespace, malformed: Malformed) -> Splits:
    """All splits, the training set cut down to `SMALL` pairs where that is asked for."""
    if options.size == "full":
        return read_line_aligned(options.raw, GIGAWORD, malformed)
    splits = read_line_aligned(options.raw, GIGAWORD_10K, malformed)
    return {**splits, "train": sample(splits["train"], SMALL, options.seed)}


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
