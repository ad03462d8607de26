"""``s2sft rerank``: rank recorded hypotheses again with another length penalty, without the model.

s2sft generate ... --beam 5 --all-ended --output search.jsonl
s2sft rerank --input search.jsonl --length-penalty gnmt --lenpen 0.9 --output test.out
"""

import argparse
import json
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from s2sft_fairseq.data.text_files import check_text, is_json_lines, write_lines
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.reranking import PENALTIES, Ranking, read_record

logger = logging.getLogger(__name__)
_LINE_END = re.compile(r"\r\n|[\r\n]")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Raises:
        UserError: naming everything that is wrong with the options, or the line of the file.
    """
    options = _parser().parse_args(arguments)
    ranking = Ranking(options.length_penalty, options.lenpen, options.min_len, options.expected_length)
    if problems := [*_problems(options), *ranking.problems()]:
        raise UserError.of(problems)
    check_text(options.input, allow_crlf=True, allow_json=True)
    count = write_lines(options.output, _lines(options, ranking))
    print(f"{options.output}: {count:,} lines")


def _lines(options: argparse.Namespace, ranking: Ranking) -> Iterator[str]:
    """Yield the best text of each line, or the object with the best hypotheses.

    Raises:
        UserError: a line is wrong, or no hypothesis at all has ``--min-len`` tokens.
    """
    recorded = short = 0
    for record in read_record(options.input):
        ranked = ranking.rank(record["hypotheses"])
        recorded += bool(record["hypotheses"])
        short += bool(record["hypotheses"]) and not ranked
        if is_json_lines(options.output):
            yield json.dumps({**record, "hypotheses": ranked[: options.nbest]}, ensure_ascii=False)
        else:
            yield _LINE_END.sub(" ", ranked[0]["text"]) if ranked else ""
    what = f"{short:,} of {recorded:,} recorded searches have no hypothesis of --min-len {options.min_len} tokens"
    if short and short == recorded:
        raise UserError(f"{what}: nothing is left to rank")
    if short:
        logger.warning(f"{what}: nothing is written for them")


def _problems(options: argparse.Namespace) -> Iterator[str]:
    if not is_json_lines(options.input):
        yield f"--input must be a .jsonl file that s2sft generate wrote, but is {options.input}"
    elif not options.input.is_file():
        yield f"--input must be a file, but {options.input} is not one"
    if options.output.exists() and not options.overwrite:
        yield f"--output {options.output} exists already: give another name, or --overwrite"
    if options.output.resolve() == options.input.resolve():
        yield f"--output must be another file than --input, but both are {options.output}"
    if options.output.suffix == ".gz":
        yield f"--output is not compressed and must not end in .gz, but is {options.output}"
    if options.nbest < 1:
        yield f"--nbest must be at least 1, but is {options.nbest}"
    elif options.nbest > 1 and not is_json_lines(options.output):
        yield f"--nbest {options.nbest} needs an --output that ends in .jsonl, but it is {options.output}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="s2sft rerank", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--input", type=Path, required=True, metavar="FILE", help="what s2sft generate wrote to a .jsonl file"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE",
        help="the best text of each line, or where the name ends in .jsonl an object with --nbest hypotheses",
    )  # fmt: skip
    parser.add_argument("--overwrite", action="store_true", help="replace --output where it exists")
    parser.add_argument(
        "--length-penalty", choices=PENALTIES, default="length",
        help="the score is the log-probability divided by length ** lenpen, or with gnmt by ((5 + length) / 6) ** "
        "lenpen; sum: plus lenpen * length; distance: minus lenpen * |length - N| (default: length)",
    )  # fmt: skip
    parser.add_argument("--lenpen", type=float, default=1.0, metavar="X", help="(default: 1)")
    parser.add_argument("--expected-length", type=int, metavar="N", help="tokens with eos, for distance")
    parser.add_argument(
        "--min-len", type=int, default=0, metavar="N", help="leave out hypotheses with fewer tokens (default: 0)"
    )
    parser.add_argument("--nbest", type=int, default=1, metavar="N", help="hypotheses in a .jsonl output (default: 1)")
    return parser
