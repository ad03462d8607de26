"""Common parts of the ablations of pre-training: their options, and a training by ``s2sft pretrain``."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from compare_methods import s2sft, split


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add options for text and raw files, the start of pre-training, and the length of both trainings."""
    parser.add_argument("--text", type=Path, required=True, metavar="DIR", help="for pre-training")
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--encoder", type=Path, metavar="DIR", help="pre-training begins with it")
    start.add_argument("--tokenizer-dir", type=Path, metavar="DIR", help="such as BERT's vocab.txt: random weights")
    parser.add_argument("--raw", nargs="+", required=True, metavar="TASK=DIR", help="tasks and their raw files")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--arch", default="unilm_tiny", help="of random weights (default: unilm_tiny)")
    parser.add_argument("--pretraining-updates", type=int, default=1000, metavar="N", help="(default: 1000)")
    parser.add_argument(
        "--pretraining-tokens", type=int, default=8192, metavar="N", help="positions of an update (default: 8192)"
    )
    parser.add_argument("--pretraining-lr", default="1e-3", metavar="X", help="(default: 1e-3)")
    parser.add_argument("--updates", type=int, default=600, metavar="N", help="of fine-tuning (default: 600)")
    parser.add_argument("--cpu", action="store_true", help="pre-train and fine-tune without a GPU, though there is one")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], metavar="N", help="(default: 1 2)")


def parse(parser: argparse.ArgumentParser, known: Sequence[str]) -> argparse.Namespace:
    """Parse the command line; ``of_recipe`` has the arguments after ``--``, ``tasks`` the pairs of ``--raw``.

    Args:
        parser: a parser with the options of `add_options`.
        known: the allowed names of tasks.
    """
    own, of_recipe = split(sys.argv[1:])
    options = parser.parse_args(own)
    options.of_recipe = ["--cpu", *of_recipe] if options.cpu else of_recipe
    if wrong := [text for text in options.raw if "=" not in text]:
        parser.error(f"--raw must be TASK=DIR, but is {', '.join(wrong)}")
    options.tasks = [(task, Path(raw)) for task, _, raw in (text.partition("=") for text in options.raw)]
    problems = [f"{task} is none of {', '.join(known)}" for task, _ in options.tasks if task not in known]
    problems += [f"{raw} is no folder" for _, raw in options.tasks if not raw.is_dir()]
    if problems:
        parser.error(f"--raw must be TASK=DIR, but {'; '.join(problems)}")
    return options


def pretrain(
    preset: str, name: str, options: argparse.Namespace, *words: object, further: Sequence[object] = ()
) -> Path:
    """Pre-train on the text, unless that is done already; return the folder of the encoder.

    Args:
        preset: preset of ``s2sft pretrain``.
        name: folder of the training.
        options: see `add_options`.
        words: further options of ``s2sft pretrain``.
        further: further options of ``s2sft train``.
    """
    output = options.output / "text"
    if options.encoder:
        begin = ("--encoder", options.encoder)
    else:
        begin, further = ("--tokenizer-dir", options.tokenizer_dir), ("--arch", options.arch, *further)
    s2sft("pretrain", preset, "--text", options.text, *begin, "--output", output, "--run", name,
          "--updates", options.pretraining_updates, "--device-tokens", options.pretraining_tokens, *words,
          "--", *further, "--lr", options.pretraining_lr, "--update-freq", 1, "--attention-dropout", 0,
          *(("--cpu",) if options.cpu else ()), "--num-workers", 0)  # fmt: skip
    return output / name / "encoder"
