"""What the command lines of ``preprocess/`` that read a benchmark have in common."""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from s2sft_fairseq.corpora.malformed import Malformed
from s2sft_fairseq.corpora.writing import write_corpus
from s2sft_fairseq.errors import UserError

Splits = Mapping[str, Iterable[Any]]


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """A parser of the options that every benchmark has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--raw", type=Path, required=True, metavar="DIR", help="folder of the raw files")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="new folder to write to")
    parser.add_argument(
        "--skip-malformed", action="store_true", help="leave malformed records out; otherwise they are an error"
    )
    parser.add_argument(
        "--limit", type=int, metavar="N", help="the first N examples of each split only, and read no further"
    )
    return parser


def run(
    parser: argparse.ArgumentParser,
    read: Callable[[argparse.Namespace, Malformed], Splits],
    write: Callable[..., dict[str, Any]] = write_corpus,
) -> None:
    """Read a benchmark, write it, and print what was written; mistakes of the user's end the process with status 2.

    `write` takes what `write_corpus` takes.
    """
    options = parser.parse_args()
    malformed = Malformed()
    try:
        if options.limit is not None and options.limit < 1:
            raise UserError(f"--limit must be at least 1, but is {options.limit}")
        if not options.raw.is_dir():
            raise UserError(f"--raw must be a folder, but {options.raw} is none")
        stats = write(
            read(options, malformed),
            options.output,
            malformed,
            skip_malformed=options.skip_malformed,
            limit=options.limit,
            settings=vars(options),
        )
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    if malformed.records:
        print(f"left out {malformed.records.total():,} malformed records ({malformed.by_file()}):", file=sys.stderr)
        print("\n".join(f"  - {line}" for line in malformed.lines()), file=sys.stderr)
    print(f"{options.output}: " + ", ".join(f"{name} {count:,}" for name, count in stats["lines"].items()))
