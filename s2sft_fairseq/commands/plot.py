"""`s2sft plot`: pictures of what the package computes, with the numbers beside them."""

import argparse
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

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
    _finish(kind, _masks)
    kind = kinds.add_parser("training", help="loss, learning rate, speed, gradient norm and scores over the updates")
    kind.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a folder with train.log, or a log file")
    _finish(kind, _training)
    kind = kinds.add_parser("lengths", help="lengths of sources and targets, and the share that is cut")
    kind.add_argument(
        "data", type=Path, nargs="+", metavar="DATA", help="a folder of binarized data, or a source and a target file"
    )
    kind.add_argument("--encoder", type=Path, metavar="DIR", help="tokenizer of text files; its limits, if it has any")
    kind.add_argument("--split", default="train", help="of binarized data (default: train)")
    for side in ("source", "target"):
        kind.add_argument(
            f"--max-{side}-positions",
            type=int,
            metavar="N",
            help="the limit (default: that of --encoder, else of s2sft train)",
        )
    _finish(kind, _lengths)
    kind = kinds.add_parser("attention", help="attention weights of a model over a packed sequence")
    kind.add_argument("folder", type=Path, metavar="FOLDER", help="a model folder")
    kind.add_argument("--source", required=True, metavar="TEXT", help="with [SEP] between fields")
    kind.add_argument("--target", required=True, metavar="TEXT", help="the text whose prediction is looked at")
    kind.add_argument("--layer", type=int, default=-1, metavar="N", help="from 0 on (default: -1, the last one)")
    kind.add_argument("--head", type=int, metavar="N", help="from 0 on (default: the mean of all)")
    _finish(kind, _attention)
    return parser


def _finish(kind: argparse.ArgumentParser, run: Callable[[argparse.Namespace], None]) -> None:
    kind.add_argument("--output", type=Path, required=True, metavar="FILE", help=f"{', '.join(FORMATS)}")
    kind.set_defaults(run=run)


def _output_problems(args: argparse.Namespace) -> Iterable[str]:
    if args.output.suffix not in FORMATS:
        yield f"--output must end in {', '.join(FORMATS)}, but is {args.output}"


def _write(module: Any, picture: Any, output: Path) -> None:
    """Write a picture and its numbers with the functions of a module of `s2sft_fairseq.plots`."""
    numbers = output.with_suffix(".csv")
    module.draw(picture, output)
    module.write_csv(picture, numbers)
    print(f"plot: wrote {output} and {numbers}")


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
    problems += [*_output_problems(args), *_empty_texts(args)]
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
    _write(masks, example, args.output)


def _empty_texts(args: argparse.Namespace) -> Iterable[str]:
    return (f"{option} has no words" for option in ("--source", "--target") if not vars(args)[option[2:]].split())


def _training(args: argparse.Namespace) -> None:
    from s2sft_fairseq.plots import training

    problems = [*_output_problems(args)]
    if len(args.runs) > training.MOST_RUNS:
        problems.append(f"at most {training.MOST_RUNS} RUNs can be told apart, but {len(args.runs)} are given")
    runs = []
    for path in args.runs:
        try:
            runs.append(training.read_run(path))
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError.of(problems)
    _write(training, runs, args.output)


def _lengths(args: argparse.Namespace) -> None:
    limits = {name: vars(args)[name] for name in ("max_source_positions", "max_target_positions")}
    problems = [
        f"{as_option(name)} must be at least 2, but is {value}"
        for name, value in limits.items()
        if value is not None and value < 2
    ]
    if len(args.data) > 2:
        problems.append(f"DATA must be a folder or two text files, but {len(args.data)} are given")
    problems += _output_problems(args)
    if problems:
        raise UserError.of(problems)
    from s2sft_fairseq.plots import lengths  # which imports PyTorch

    sides = lengths.measure(args.data, args.split, args.encoder, *limits.values())
    for side in sides:
        print(f"plot: {side}")
    _write(lengths, sides, args.output)


def _attention(args: argparse.Namespace) -> None:
    if problems := [*_output_problems(args), *_empty_texts(args)]:
        raise UserError.of(problems)
    from s2sft_fairseq.plots import attention  # which imports PyTorch

    _write(attention, attention.attend(args.folder, args.source, args.target, args.layer, args.head), args.output)
