"""``s2sft predict``: write the predictions of a model fine-tuned for understanding, for the official evaluators.

Classes and numbers are written as a table for GLUE's server, ``index<TAB>prediction``. Answers are written as JSON for
SQuAD's evaluators, ``{id: text}``, and with --null-odds a second file, ``{id: odds that there is no answer}``.
"""

import argparse
import ast
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.hub import local_path

N_BEST = 20


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Raises:
        UserError: naming everything that is wrong with the options, the data or the checkpoint.
    """
    options = _parser().parse_args(arguments)
    if problems := _problems(options):
        raise UserError.of(problems)
    from s2sft_fairseq.tasks.prediction import predict  # imports PyTorch, which --help does not need

    predict(options)


def _problems(options: argparse.Namespace) -> list[str]:
    from s2sft_fairseq.checkpoints.model_folder import checkpoint_file, what_it_is  # imports PyTorch, as above

    found = []
    if options.fp16 and options.bf16:
        found.append("--fp16 and --bf16 exclude each other: give one of them")
    for name in ("max_tokens", "batch_size", "max_answer"):
        value = getattr(options, name)
        if value is not None and value < 1:
            found.append(f"{as_option(name)} must be at least 1, but is {value}")
    if options.null_threshold is not None and math.isnan(options.null_threshold):
        found.append(f"--null-threshold must be a number, but is {options.null_threshold}")
    if options.clip and not options.clip[0] <= options.clip[1]:  # neither holds for NaN
        found.append(f"--clip must be a least and a greatest number, but is {options.clip[0]:g} {options.clip[1]:g}")
    if not checkpoint_file(options.path).is_file():
        what = what_it_is(options.path) if options.path.is_dir() else "neither"
        found.append(f"--path must be a checkpoint file or a model folder, but {options.path} is {what}")
    return found


def _dictionary(text: str) -> dict[str, Any]:
    try:
        return dict(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError):
        raise argparse.ArgumentTypeError(
            f"must be a dictionary such as {{'pretrained': 'DIR'}}, but is {text}"
        ) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="s2sft predict", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder written by s2sft preprocess --only-source")
    parser.add_argument(
        "--path", type=local_path, required=True, metavar="PATH", help="the fine-tuned checkpoint, or a model folder"
    )
    parser.add_argument("--subset", default="valid", metavar="NAME", help="the split (default: valid)")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the file to write")
    parser.add_argument(
        "--clip", type=float, nargs=2, metavar=("LEAST", "MOST"), help="of a regression: the range of its numbers"
    )
    answers = parser.add_argument_group("question answering")
    answers.add_argument(
        "--max-answer", type=int, default=30, metavar="N", help="most tokens of an answer (default: 30)"
    )
    answers.add_argument(
        "--null-odds",
        type=Path,
        metavar="FILE",
        help="questions may have no answer, as in SQuAD v2.0: write the odds of it, score of [CLS] minus score of the "
        "best answer",
    )
    answers.add_argument(
        "--null-threshold",
        type=float,
        metavar="X",
        help="odds above which there is no answer; inf: there always is one, to search the best threshold (default: 0)",
    )
    answers.add_argument(
        "--n-best-file", type=Path, metavar="FILE", help=f"write the best {N_BEST} spans with their scores, too"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=8192, metavar="N", help="positions of a batch together (default: 8192)"
    )
    parser.add_argument("--batch-size", type=int, metavar="N", help="most texts of a batch")
    parser.add_argument("--cpu", action="store_true", help="compute on the CPU, though there is a GPU")
    parser.add_argument("--fp16", action="store_true", help="compute in float16")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16")
    parser.add_argument(
        "--model-overrides",
        type=_dictionary,
        default={},
        metavar="DICT",
        help="options of the model that replace those of the checkpoint, such as \"{'pretrained': 'DIR'}\"",
    )
    parser.set_defaults(n_best=N_BEST)
    return parser
