"""``s2sft export``: write a model as a folder that loads by itself, or in Hugging Face's format."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import check_replaceable

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
    parser.add_argument(
        "--self-contained",
        action="store_true",
        help="hugging_face, for encoders that generate: with the code that generates, which transformers runs with "
        "trust_remote_code=True",
    )
    parser.add_argument(
        "--verify",
        type=Path,
        metavar="FILE",
        help="texts, one a line, that the exported model is compared on (default: a few built-in ones)",
    )
    options = parser.parse_args(arguments)
    if problems := list(_problems(options)):
        raise UserError.of(problems)
    # They import PyTorch, which --help does without.
    if options.self_contained:
        from s2sft_fairseq.exports.original import Original, as_model_folder
        from s2sft_fairseq.exports.self_contained import export_self_contained
        from s2sft_fairseq.models.export_verification import read_texts

        check_replaceable(options.to, "--to")
        texts = read_texts(options.verify)
        with as_model_folder(options.checkpoint, options.tokenizer_dir, options.pretrained) as folder:
            export_self_contained(Original(folder, "--self-contained"), options.to, texts)
    elif options.format == HUGGING_FACE:
        from s2sft_fairseq.models.export import export_to_hugging_face

        export_to_hugging_face(options.checkpoint, options.to, options.tokenizer_dir, options.pretrained)
    else:
        from s2sft_fairseq.models.model_folder import export_folder

        export_folder(options.checkpoint, options.to, options.tokenizer_dir, pretrained=options.pretrained)
        print(f"wrote {options.to}: a model folder; its README.md is a model card to complete")


def _problems(options: argparse.Namespace) -> Iterator[str]:
    if options.self_contained and options.format != HUGGING_FACE:
        yield f"--self-contained is for --format {HUGGING_FACE}, but that is {options.format}"
    if options.verify and not options.self_contained:
        yield f"--verify {options.verify} is for --self-contained"
