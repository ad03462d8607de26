"""``s2sft average``: average the weights of checkpoints of one training: the last, the best, or those that match.

s2sft average checkpoints --last 5 --output checkpoints/average.pt
s2sft average checkpoints --pattern 'checkpoint_*_?000.pt' --output checkpoints/average.pt

The options of fairseq's scripts/average_checkpoints.py mean the same here:

s2sft average --inputs checkpoints --num-epoch-checkpoints 5 --output checkpoints/average.pt
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from s2sft_fairseq import runtime
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.progress import step

KINDS = ("epoch", "update")
"""Kinds of checkpoints, by what fairseq counts in their names."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Raises:
        UserError: naming what is wrong with the options, or with the checkpoints.
    """
    parser = argparse.ArgumentParser(
        prog="s2sft average", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", help="the --save-dir of the training")
    parser.add_argument(
        "--inputs", type=Path, nargs="+", metavar="PATH", help="this folder, or the checkpoints themselves"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--last", type=int, metavar="N", help="the last N, whether of epochs or of updates")
    names, kept = ("--best", "--num-best-checkpoints"), "the best N of those that --keep-best-checkpoints kept"
    which.add_argument(*names, type=int, metavar="N", help=kept)
    which.add_argument("--pattern", metavar="GLOB", help="all whose names match, such as 'checkpoint_*_?000.pt'")
    for kind in KINDS:
        which.add_argument(f"--num-{kind}-checkpoints", type=int, metavar="N", help=f"the last N of {kind}s")
    parser.add_argument(
        "--checkpoint-upper-bound", type=int, metavar="N", help="with the two options before: none after this number"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the checkpoint to write")
    options = parser.parse_args(arguments)
    runtime.install()  # imports PyTorch and fairseq, which --help does not need
    from s2sft_fairseq.checkpoints.averaging import average_checkpoints, check_replaceable
    from s2sft_fairseq.checkpoints.saving import save_checkpoint

    paths = _chosen(options)
    if not options.output.parent.is_dir():
        raise UserError(f"--output {options.output}: its folder does not exist")
    if options.output in paths:
        raise UserError(f"--output must be another file than those that are averaged, but is {options.output}")
    check_replaceable(options.output)
    state = average_checkpoints(paths)
    with step(f"write {options.output}"):
        save_checkpoint(state, options.output)
    print(f"{options.output}: the average of {', '.join(path.name for path in paths)}")


def _chosen(options: argparse.Namespace) -> list[Path]:
    """Return the checkpoints that the options name.

    Raises:
        UserError: the options contradict each other, or the folder has too few checkpoints.
    """
    from s2sft_fairseq.checkpoints.averaging import choose_checkpoints, last_of_kind

    inputs = [*([options.folder] if options.folder else []), *(options.inputs or [])]
    numbers = {kind: getattr(options, f"num_{kind}_checkpoints") for kind in KINDS}
    of_kinds = {kind: number for kind, number in numbers.items() if number is not None}
    of_folder = (options.last, options.best, options.pattern)
    if options.checkpoint_upper_bound is not None and not of_kinds:
        needed = " or ".join(f"--num-{kind}-checkpoints" for kind in KINDS)
        raise UserError(f"--checkpoint-upper-bound needs {needed}")
    if not of_kinds and all(each is None for each in of_folder):
        if not options.inputs or options.folder or any(path.is_dir() for path in inputs):
            raise UserError(
                "the checkpoints must be chosen by --last, --best, --pattern, --num-epoch-checkpoints or "
                "--num-update-checkpoints, or --inputs must be the files of checkpoints"
            )
        return inputs
    if len(inputs) != 1:
        found = ", ".join(map(str, inputs)) or "none"
        raise UserError(f"one folder must be given, the --save-dir of the training, but is {found}")
    for kind, number in of_kinds.items():
        return last_of_kind(inputs[0], kind, number, options.checkpoint_upper_bound)
    return choose_checkpoints(inputs[0], *of_folder)
