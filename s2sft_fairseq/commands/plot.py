"""`s2sft plot`: pictures of what the package computes, with the numbers beside them."""

import argparse
from dataclasses import replace
from pathlib import Path

from s2sft_fairseq.errors import UserError, as_option, package
from s2sft_fairseq.objectives.blocks import LENGTHS, LONGEST, SCHEDULES, Blocks, parse_block_length
from s2sft_fairseq.objectives.objective import OBJECTIVES

FORMATS = (".png", ".svg", ".pdf")
_OF_METHODS = ("block_length", "noise_schedule", "target_mask_prob", "noise_prob")
"""Options that only some methods read."""


def main(arguments: list[str]) -> None:
    """Draw what is asked for.

    Raises:
        UserError: naming every option that is out of range, or the package that is missing.
    """
    args = _parser().parse_args(arguments)
    package("matplotlib", "s2sft plot")
    args.run(args)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="s2sft plot", description=__doc__)
    kinds = parser.add_subparsers(required=True, metavar="KIND")
    kind = kinds.add_parser("masks", help="the packed sequence of an example, and who sees whom in it")
    kind.add_argument("--method", choices=OBJECTIVES, default="pseudo_masked", help="default: pseudo_masked")
    kind.add_argument("--source", required=True, metavar="WORDS", help="with [SEP] between fields")
    kind.add_argument("--target", required=True, metavar="WORDS", help="what is to be generated")
    kind.add_argument("--block-length", metavar="N", help=f"blocks: {LENGTHS} (default: random)")
    kind.add_argument("--noise-schedule", choices=SCHEDULES, help="blocks (default: uniform)")
    kind.add_argument("--target-mask-prob", type=float, metavar="P", help="corrupt the target (default: the paper's)")
    kind.add_argument("--noise-prob", type=float, metavar="P", help="infilling (default: 0)")
    kind.add_argument("--seed", type=int, default=1, help="of what is drawn (default: 1)")
    kind.add_argument("--output", type=Path, required=True, metavar="FILE", help=f"{', '.join(FORMATS)}")
    kind.set_defaults(run=_masks)
    return parser


def _masks(args: argparse.Namespace) -> None:
    from s2sft_fairseq.plots import masks  # which imports PyTorch

    objective = OBJECTIVES[args.method]
    given = {name: value for name in _OF_METHODS if (value := getattr(args, name)) is not None}
    problems = [
        f"{as_option(name)} does nothing with --method {args.method}" for name in given.keys() - objective.options
    ]
    probabilities = {name: value for name, value in given.items() if name.endswith("_prob")}
    corruption = replace(objective.corruption["paper"], **probabilities)
    problems += corruption.problems()
    bounds = parse_block_length(args.block_length or "random")
    if bounds is None:
        problems.append(f"--block-length must be {LENGTHS}, but is {args.block_length!r:.40}")
    if args.output.suffix not in FORMATS:
        problems.append(f"--output must end in {', '.join(FORMATS)}, but is {args.output}")
    problems += [f"{option} has no words" for option in ("--source", "--target") if not vars(args)[option[2:]].split()]
    if problems:
        raise UserError.of(problems)
    least, greatest = bounds or (1, LONGEST)
    example = masks.pack_words(
        args.method,
        args.source.split(),
        args.target.split(),
        cut=Blocks(least, greatest, schedule=args.noise_schedule or "uniform"),
        corruption=corruption,
        seed=args.seed,
    )
    masks.draw(example, args.output)
    numbers = args.output.with_suffix(".csv")
    masks.write_csv(example, numbers)
    print(f"plot: wrote {args.output} and {numbers}")
