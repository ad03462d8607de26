"""`s2sft plot`: pictures of what the package computes, with the numbers beside them."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from s2sft_fairseq.errors import UserError, as_option, package
from s2sft_fairseq.hub import local_path, tokenizer_path
from s2sft_fairseq.objectives.blocks import LENGTHS, SCHEDULES, Blocks, parse_range
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.pseudo_masked_lm import LANGUAGE_MODELS, BlockwiseMasking
from s2sft_fairseq.objectives.span_corruption import SpanCorruption

FORMATS = (".png", ".svg", ".pdf")
METHODS = (*OBJECTIVES, "unilmv2", "deltalm")
"""Of `s2sft plot masks`: the fine-tuning methods, the pre-training of UniLMv2, and DeltaLM."""
_SPECIAL = {"[CLS]", "[SEP]", "[PAD]"}
_READERS = {
    "source": (*OBJECTIVES, "deltalm"),
    "target": (*OBJECTIVES, "deltalm"),
    "text": ("unilmv2", "deltalm"),
    "block_length": ("blocks",),
    "noise_schedule": ("blocks",),
    "word_flow_weight": ("blocks",),
    "target_mask_prob": tuple(name for name in OBJECTIVES if "target_mask_prob" in OBJECTIVES[name].options),
    "noise_prob": tuple(name for name in OBJECTIVES if "noise_prob" in OBJECTIVES[name].options),
    "spans": tuple(name for name in OBJECTIVES if OBJECTIVES[name].takes_spans),
    "source_visibility": tuple(OBJECTIVES),
    "language_model": ("unilmv2",),
    "mask_ratio": ("unilmv2",),
    "block_prob": ("unilmv2",),
    "block_lengths": ("unilmv2",),
    "span_density": ("deltalm",),
    "mean_span_length": ("deltalm",),
}
"""The methods that read an option of `s2sft plot masks`."""


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
    kind = kinds.add_parser("masks", help="the training sequence of an example, and who sees whom in it")
    kind.add_argument(
        "--method",
        choices=METHODS,
        default="pseudo_masked",
        help="a fine-tuning method, unilmv2 (pre-training) or deltalm (default: pseudo_masked)",
    )
    kind.add_argument("--source", metavar="WORDS", help="with [SEP] between fields; all methods but unilmv2")
    kind.add_argument("--target", metavar="WORDS", help="what is to be generated; all methods but unilmv2")
    kind.add_argument(
        "--text",
        metavar="WORDS",
        help="unilmv2: a text to mask, with [SEP] between its halves; deltalm: a text to take spans out of, instead "
        "of --source and --target",
    )
    kind.add_argument("--block-length", metavar="N", help=f"blocks: {LENGTHS} (default: random)")
    kind.add_argument("--noise-schedule", choices=SCHEDULES, help="blocks: how much is masked (default: uniform)")
    kind.add_argument(
        "--word-flow-weight",
        type=float,
        metavar="W",
        help="blocks: weight of the word flow; 0: without it (default: 0.5; blocks of one length: 0)",
    )
    kind.add_argument("--target-mask-prob", type=float, metavar="P", help="corrupt the target (default: the paper's)")
    kind.add_argument(
        "--noise-prob", type=float, metavar="P", help="infilling and causal: noise in the target (default: 0)"
    )
    kind.add_argument(
        "--spans",
        nargs="+",
        metavar="WORDS",
        help="infilling and pseudo_masked: two or three words of the target that make a span, as in 'a pub' 'the city'",
    )
    kind.add_argument(
        "--source-visibility",
        choices=("both", "causal"),
        help="of the model: fine-tuning methods; causal, as in language models (default: both)",
    )
    kind.add_argument("--language-model", choices=LANGUAGE_MODELS, help="unilmv2: what is trained (default: ae+par)")
    kind.add_argument(
        "--mask-ratio", type=float, metavar="SHARE", help="unilmv2: share of masked tokens (default: 0.15)"
    )
    kind.add_argument(
        "--block-prob",
        type=float,
        metavar="P",
        help="unilmv2: probability that a factorization step is a block, and not one token (default: 0.4)",
    )
    kind.add_argument("--block-lengths", metavar="RANGE", help="unilmv2: lengths of these blocks (default: 2-6)")
    kind.add_argument(
        "--span-density", type=float, metavar="SHARE", help="deltalm: share of --text that is taken out (default: 0.15)"
    )
    kind.add_argument("--mean-span-length", type=float, metavar="N", help="deltalm: mean tokens of a span (default: 3)")
    kind.add_argument("--seed", type=int, default=1, help="of what is drawn (default: 1)")
    _finish(kind, _masks)
    kind = kinds.add_parser("training", help="loss, learning rate, speed, gradient norm and scores over the updates")
    kind.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a folder with train.log, or a log file")
    _finish(kind, _training)
    kind = kinds.add_parser("lengths", help="lengths of sources and targets, and the share that is cut")
    kind.add_argument(
        "data", type=Path, nargs="+", metavar="DATA", help="a folder of binarized data, or a source and a target file"
    )
    kind.add_argument(
        "--encoder", type=tokenizer_path, metavar="DIR", help="tokenizer of text files; its limits, if it has any"
    )
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
    kind.add_argument("folder", type=local_path, metavar="FOLDER", help="a model folder")
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
    problems = [
        f"{as_option(name)} does nothing with --method {args.method}"
        for name, readers in _READERS.items()
        if getattr(args, name) is not None and args.method not in readers
    ]
    problems += _output_problems(args)
    pack = {"unilmv2": _masked_text, "deltalm": _encoder_decoder}.get(args.method, _packed_pair)
    example = pack(args, problems)
    from s2sft_fairseq.plots import masks

    _write(masks, example, args.output)


def _packed_pair(args: argparse.Namespace, problems: list[str]) -> Any:
    """Return a packed pair. This and the next two functions add problems, and raise a `UserError` if there are any."""
    problems += _empty_texts(args, "source", "target")
    given = _given(args, target_mask_prob="target_mask_prob", noise_prob="noise_prob")
    corruption = replace(OBJECTIVES[args.method].corruption["paper"], **given)
    problems += corruption.problems()
    try:
        cut = Blocks.of_options(args.block_length, args.word_flow_weight, args.noise_schedule)
    except UserError as error:
        problems += error.problems
    target, spans = (args.target or "").split(), [span.split() for span in args.spans or ()]
    problems += _span_problems(spans, target)
    if problems:
        raise UserError.of(problems)
    from s2sft_fairseq.plots import masks  # which imports PyTorch

    how = {"cut": cut, "corruption": corruption, "spans": spans, "seed": args.seed}
    causal = args.source_visibility == "causal"
    return masks.pack_pair(args.method, args.source.split(), target, causal_source=causal, **how)


def _span_problems(spans: Sequence[Sequence[str]], target: Sequence[str]) -> Iterable[str]:
    """Yield what is wrong with ``--spans``, given as words."""
    for words in spans:
        places = range(len(target) - len(words) + 1)
        if not 2 <= len(words) <= 3 or _SPECIAL.intersection(words):
            yield f"--spans must be two or three words each, none of them special, but one is {' '.join(words)!r:.60}"
        elif target and not any(target[place : place + len(words)] == words for place in places):
            yield f"--spans must be words side by side in --target, but {' '.join(words)!r:.60} are not"


def _masked_text(args: argparse.Namespace, problems: list[str]) -> Any:
    problems += _empty_texts(args, "text")
    masking = BlockwiseMasking(**_given(args, ratio="mask_ratio", block_prob="block_prob"))
    if args.block_lengths is not None:
        masking = replace(masking, block_lengths=parse_range(args.block_lengths))
    problems += masking.problems(args.block_lengths)
    words = (args.text or "").split()
    if words and _SPECIAL.issuperset(words):
        problems.append(f"--text must have words besides special symbols, but is {args.text!r:.60}")
    if problems:
        raise UserError.of(problems)
    from s2sft_fairseq.plots import masks

    return masks.pack_text(words, args.language_model or "ae+par", masking, args.seed)


def _encoder_decoder(args: argparse.Namespace, problems: list[str]) -> Any:
    corruption = SpanCorruption(**_given(args, density="span_density", mean_length="mean_span_length"))
    problems += corruption.problems("--span-density")
    text, source, target = ((vars(args)[name] or "").split() for name in ("text", "source", "target"))
    if args.text is None:
        useless, why = ("span_density", "mean_span_length"), "without --text"
        problems += _empty_texts(args, "source", "target")
    else:
        useless, why = ("source", "target"), "with --text"
        if len(text) < 2:
            problems.append(f"--text must have at least 2 words with --method deltalm, but has {len(text)}")
    problems += [f"{as_option(name)} does nothing {why}" for name in useless if getattr(args, name) is not None]
    if problems:
        raise UserError.of(problems)
    from s2sft_fairseq.plots import masks

    sides = masks.corrupt_text(text, corruption, args.seed) if text else (source, target)
    return masks.pack_encoder_decoder(*sides)


def _given(args: argparse.Namespace, **options: str) -> dict[str, Any]:
    """Return the values of the options that are given, by the names of the keywords."""
    return {name: value for name, option in options.items() if (value := getattr(args, option)) is not None}


def _empty_texts(args: argparse.Namespace, *names: str) -> Iterable[str]:
    for name in names:
        text = getattr(args, name)
        if text is None:
            others = ", or --text" if args.method in _READERS["text"] and name != "text" else ""
            yield f"{as_option(name)} is needed with --method {args.method}{others}"
        elif not text.split():
            yield f"{as_option(name)} has no words"


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
    if problems := [*_output_problems(args), *_empty_texts(args, "source", "target")]:
        raise UserError.of(problems)
    from s2sft_fairseq.plots import attention  # which imports PyTorch

    _write(attention, attention.attend(args.folder, args.source, args.target, args.layer, args.head), args.output)
