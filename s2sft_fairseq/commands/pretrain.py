r"""Pre-train an encoder, or DeltaLM, on plain text or synthetic pairs, up to a folder for fine-tuning.

    s2sft pretrain ernie-gen-base --text books --encoder bert-base-uncased --output out
    s2sft pretrain ernie-gen-base --text books --tokenizer-dir vocab --output out --updates 500 \
        -- --arch unilm_tiny --update-freq 1 --cpu
    s2sft pretrain deltalm-base --text texts --pairs pairs --encoder infoxlm-base --output out
    s2sft pretrain synthetic --encoder minilm --output out --updates 300

`--text` is a folder with train.txt and valid.txt: one paragraph per line, an empty line after each document. The
settings are those of the paper, for any number of GPUs; options of ``s2sft train`` after ``--`` override them. Stages:
convert, tokenize, find spans, binarize, train. Completed stages are skipped; a stopped training resumes. Trainings with
the same output share the prepared text. The encoder is OUT/RUN/encoder, for ``--pretrained`` and for recipes.

DeltaLM is OUT/RUN/deltalm. Its `--text` has a subfolder for each language, with train.txt and valid.txt; `--pairs` has
train.X-Y.X, train.X-Y.Y, valid.X-Y.X and valid.X-Y.Y for each pair of languages.

`synthetic` and `synthetic-deltalm` need no text. They train on pairs of random symbols of the vocabulary: a target is
its source copied, reversed or otherwise changed, so the model must look at the source.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from s2sft_fairseq.cli import call
from s2sft_fairseq.hub import is_hub_name, local_path, path_or_name, tokenizer_path
from s2sft_fairseq.recipes.pretraining import (
    PRESETS,
    SYNTHETIC,
    files_of_pair,
    kind_of,
    languages_of,
    pairs_of,
)


def main(arguments: Sequence[str]) -> None:
    """Run the command line; errors of a stage are passed on."""
    words = list(arguments)
    place = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="s2sft pretrain", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument(
        "--text", type=Path, metavar="DIR", help="with train.txt and valid.txt; synthetic presets have none"
    )
    parser.add_argument("--pairs", type=Path, metavar="DIR", help="DeltaLM: with train.X-Y.X and so on")
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument(
        "--encoder", type=path_or_name, metavar="DIR", help="to begin with, as it is published or converted"
    )
    start.add_argument(
        "--tokenizer-dir", type=path_or_name, metavar="DIR", help="such as BERT's vocab.txt: random weights"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--run", metavar="NAME", help="folder in it of this training (default: the preset)")
    parser.add_argument("--updates", type=int, metavar="N", help="(default: the paper's)")
    parser.add_argument("--device-tokens", type=int, default=8192, metavar="N", help="positions at a time on a device")
    parser.add_argument("--word-flow-only", action="store_true", help="ERNIE-GEN without the span-by-span flow")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="(default: 1)")
    options = parser.parse_args(words[:place])
    if problems := find_problems(options):
        parser.error("; ".join(problems))
    if options.encoder:
        options.encoder = local_path(options.encoder)
    if options.tokenizer_dir:
        options.tokenizer_dir = tokenizer_path(options.tokenizer_dir)
    for name in ("text", "pairs", "encoder", "tokenizer_dir"):  # absolute, as the next run may be in another folder
        if path := getattr(options, name):
            setattr(options, name, path.resolve())
    kind_of(options.preset)(options, words[place + 1 :], call).run()


def find_problems(options: argparse.Namespace) -> list[str]:
    """Return all errors in the options."""
    numbers = {"--updates": options.updates, "--device-tokens": options.device_tokens}
    folders = {"--text": options.text, "--pairs": options.pairs}
    starts = {"--encoder": options.encoder, "--tokenizer-dir": options.tokenizer_dir}
    problems = [f"{name} must be at least 1, but is {n}" for name, n in numbers.items() if n is not None and n < 1]
    problems += [
        f"{name} must be a folder, but {at} is not one" for name, at in folders.items() if at and not at.is_dir()
    ]
    problems += [
        f"{name} must be a folder, or a name on the hub, but {at} is neither"
        for name, at in starts.items()
        if at and not (at.is_dir() or is_hub_name(at))
    ]
    is_deltalm, is_synthetic = PRESETS[options.preset].task.startswith("deltalm"), options.preset in SYNTHETIC
    if is_deltalm and options.tokenizer_dir:
        problems.append(f"{options.preset} needs --encoder, from whose layers DeltaLM begins, not --tokenizer-dir")
    if options.pairs and options.preset != "deltalm-base":
        problems.append(f"--pairs is for deltalm-base, but the preset is {options.preset}")
    if is_synthetic and options.text:
        problems.append(f"--text must be left out with {options.preset}, which makes its pairs, but is {options.text}")
    if not is_synthetic and not options.text:
        problems.append(f"{options.preset} needs --text, a folder with train.txt and valid.txt")
    if options.text and options.text.is_dir():
        needed = ["train.txt", "valid.txt"]
        if is_deltalm:
            found = languages_of(options.text) or ["LANGUAGE"]
            needed = [f"{language}/{name}" for language in found for name in needed]
        if missing := [name for name in needed if not (options.text / name).is_file()]:
            problems.append(f"--text must hold {' and '.join(missing)}, but {options.text} does not")
    if options.pairs and options.pairs.is_dir():
        pairs = pairs_of(options.pairs) or ["X-Y"]
        missing = [name for pair in pairs for name in files_of_pair(pair) if not (options.pairs / name).is_file()]
        if missing:
            problems.append(f"--pairs must hold {' and '.join(missing)}, but {options.pairs} does not")
    return problems
