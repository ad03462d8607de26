"""``s2sft prepare``: turn the raw files of a benchmark, as its authors publish them, into text files."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from s2sft_fairseq.corpora.docstrings import DEFAULT_PACKAGES, CorpusSettings, build_corpus, write_corpus
from s2sft_fairseq.corpora.reading import Malformed
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.recipes.benchmarks import BENCHMARKS
from s2sft_fairseq.recipes.recipe import Benchmark

DOCSTRINGS = "docstrings"
_ABOUT_DOCSTRINGS = "A summarization corpus from the docstrings of installed packages."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Raises:
        UserError: naming what is wrong with the options, or with the raw files.
    """
    options = vars(_parser().parse_args(arguments))
    name, is_list = options.pop("benchmark"), options.pop("list")
    if is_list:
        _print_list()
    elif name is None:
        raise UserError(f"s2sft prepare needs the name of a benchmark: {', '.join([*BENCHMARKS, DOCSTRINGS])}")
    elif name == DOCSTRINGS:
        prepare_docstrings(options)
    else:
        prepare(BENCHMARKS[name], argparse.Namespace(**options))


def prepare(benchmark: Benchmark, options: argparse.Namespace) -> None:
    """Read a benchmark, write it, and print what was written.

    Raises:
        UserError: if an option is invalid, raw files are missing, or records are malformed without --skip-malformed.
    """
    problems = []
    if options.limit is not None and options.limit < 1:
        problems.append(f"--limit must be at least 1, but is {options.limit}")
    if not options.raw.is_dir():
        problems.append(f"--raw must be a folder, but {options.raw} is not one")
    if problems:
        raise UserError.of(problems)
    malformed = Malformed()
    stats = benchmark.writer(options)(
        benchmark.read(options, malformed),
        options.output,
        malformed,
        skip_malformed=options.skip_malformed,
        limit=options.limit,
        settings=vars(options),
    )
    if malformed.records:
        print(f"left out {malformed.records.total():,} malformed records ({malformed.by_file()}):", file=sys.stderr)
        print("\n".join(f"  - {line}" for line in malformed.lines()), file=sys.stderr)
    print(f"{options.output}: " + ", ".join(f"{name} {count:,}" for name, count in stats["lines"].items()))


def prepare_docstrings(options: dict[str, Any]) -> None:
    """Collect docstrings, write them, and print some of them.

    Args:
        options: the fields of `CorpusSettings`, and ``output``.
    """
    output = options.pop("output")
    settings = CorpusSettings(**{**options, "packages": tuple(options["packages"])})

    corpus = build_corpus(settings)
    stats = write_corpus(corpus, settings, output)

    for pair in corpus.splits["valid"][:3]:
        print(f"\n{pair.module}\n  body:    {pair.body[:300]}\n  summary: {pair.summary}")
    print(f"\ndropped: {stats['dropped']}\nfiles that could not be parsed: {len(corpus.unparsable)}")
    print(f"pairs: {stats['pairs']}\nwrote {output}/{{train,valid,test}}.{{src,tgt}}, README.md and stats.json")


def _print_list() -> None:
    about = {name: _about(benchmark) for name, benchmark in BENCHMARKS.items()} | {DOCSTRINGS: _ABOUT_DOCSTRINGS}
    width = max(map(len, about))
    for name, text in about.items():
        print(f"{name:{width}}  {text}")


def _about(benchmark: Benchmark) -> str:
    return f"{benchmark.about} Raw files: {benchmark.raw}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="s2sft prepare", description=__doc__, allow_abbrev=False)
    parser.add_argument("--list", action="store_true", help="print the benchmarks and their raw files")
    benchmarks = parser.add_subparsers(
        dest="benchmark", metavar="BENCHMARK", help="one of --list; s2sft prepare BENCHMARK --help lists its options"
    )
    for name, benchmark in BENCHMARKS.items():
        own = benchmarks.add_parser(name, description=_about(benchmark), allow_abbrev=False)
        own.add_argument("--raw", type=Path, required=True, metavar="DIR", help="folder of the raw files")
        own.add_argument("--output", type=Path, required=True, metavar="DIR", help="new folder to write to")
        own.add_argument(
            "--skip-malformed", action="store_true", help="leave malformed records out; otherwise they are an error"
        )
        own.add_argument(
            "--limit", type=int, metavar="N", help="the first N examples of each split only, and read no further"
        )
        for option, setting in [*benchmark.options.items(), *benchmark.reader_options.items()]:
            setting.add_to(own, option, is_checked=True)
    own = benchmarks.add_parser(
        DOCSTRINGS,
        description=_ABOUT_DOCSTRINGS,
        allow_abbrev=False,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    _add_docstring_options(own)
    return parser


def _add_docstring_options(parser: argparse.ArgumentParser) -> None:
    defaults = CorpusSettings()
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to write to")
    parser.add_argument(
        "--packages", nargs="+", default=list(DEFAULT_PACKAGES), metavar="NAME",
        help="packages as they are imported; stdlib is Python's standard library",
    )  # fmt: skip
    parser.add_argument("--min-body-words", type=int, default=defaults.min_body_words, metavar="N",
                        help="drop pairs with a shorter body")  # fmt: skip
    parser.add_argument("--min-summary-words", type=int, default=defaults.min_summary_words, metavar="N",
                        help="drop pairs with a shorter summary")  # fmt: skip
    parser.add_argument("--max-summary-words", type=int, default=defaults.max_summary_words, metavar="N",
                        help="drop pairs with a longer summary")  # fmt: skip
    parser.add_argument("--valid-share", type=float, default=defaults.valid_share, metavar="X",
                        help="share of the modules for validation")  # fmt: skip
    parser.add_argument("--test-share", type=float, default=defaults.test_share, metavar="X",
                        help="share of the modules for testing")  # fmt: skip
    parser.add_argument("--seed", type=int, default=defaults.seed, metavar="N", help="seed of the split")
