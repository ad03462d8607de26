"""``s2sft average``: average the weights of checkpoints of one training: the last, the best, or those that match.

s2sft average checkpoints --last 5 --output checkpoints/average.pt
s2sft average checkpoints --pattern 'checkpoint_*_?000.pt' --output checkpoints/average.pt
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from s2sft_fairseq import runtime
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.progress import step


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Raises:
        UserError: naming what is wrong with the options, or with the checkpoints.
    """
    parser = argparse.ArgumentParser(
        prog="s2sft average", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the --save-dir of the training")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--last", type=int, metavar="N", help="the last N, whether of epochs or of updates")
    which.add_argument("--best", type=int, metavar="N", help="the best N of those that --keep-best-checkpoints kept")
    which.add_argument("--pattern", metavar="GLOB", help="all whose names match, such as 'checkpoint_*_?000.pt'")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the checkpoint to write")
    options = parser.parse_args(arguments)
    runtime.install()  # imports PyTorch and fairseq, which --help does not need
    from s2sft_fairseq.checkpoints.averaging import average_checkpoints, choose_checkpoints
    from s2sft_fairseq.checkpoints.saving import save_checkpoint

    paths = choose_checkpoints(options.folder, options.last, options.best, options.pattern)
    if not options.output.parent.is_dir():
        raise UserError(f"--output {options.output}: its folder does not exist")
    if options.output in paths:
        raise UserError(f"--output must be another file than those that are averaged, but is {options.output}")
    state = average_checkpoints(paths)
    with step(f"write {options.output}"):
        save_checkpoint(state, options.output)
    print(f"{options.output}: the average of {', '.join(path.name for path in paths)}")
