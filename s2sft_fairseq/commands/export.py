"""``s2sft export``: write a model in Hugging Face's format: a generator, a classifier, an answer finder, an encoder."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="s2sft export", description=__doc__)
    parser.add_argument("checkpoint", type=Path, help="a checkpoint of s2sft train, or a folder of s2sft convert")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="the folder to write, new or empty")
    parser.add_argument(
        "--tokenizer-dir", type=Path, metavar="DIR", help="the tokenizer's files: the folder of the converted encoder"
    )
    parser.add_argument(
        "--pretrained",
        type=Path,
        metavar="DIR",
        help="the encoder of a checkpoint with adapters (--lora-rank), where it is no longer where it was",
    )
    options = parser.parse_args(arguments)
    from s2sft_fairseq.models.export import export  # imports PyTorch, which --help does without

    export(options.checkpoint, options.to, options.tokenizer_dir, options.pretrained)
