"""``s2sft export``: write a model as a folder that loads by itself, or in Hugging Face's format."""

import argparse
from collections.abc import Sequence
from pathlib import Path

MODEL_FOLDER, HUGGING_FACE = "model", "hugging_face"


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="s2sft export", description=__doc__)
    parser.add_argument(
        "checkpoint",
        type=Path,
        help="a checkpoint of s2sft train, a model folder, or for hugging_face a folder of s2sft convert",
    )
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="the folder to write, new or empty")
    parser.add_argument(
        "--format",
        choices=(MODEL_FOLDER, HUGGING_FACE),
        default=MODEL_FOLDER,
        help="model: a model folder, which every command of s2sft takes in place of a checkpoint and of "
        "--tokenizer-dir; hugging_face: what transformers reads (default: model)",
    )
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
    # They import PyTorch, which --help does without.
    if options.format == HUGGING_FACE:
        from s2sft_fairseq.models.export import export_to_hugging_face

        export_to_hugging_face(options.checkpoint, options.to, options.tokenizer_dir, options.pretrained)
    else:
        from s2sft_fairseq.models.model_folder import export_folder

        export_folder(options.checkpoint, options.to, options.tokenizer_dir, pretrained=options.pretrained)
        print(f"wrote {options.to}: a model folder; its README.md is a model card to complete")
