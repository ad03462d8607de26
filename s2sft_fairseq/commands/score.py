"""`s2sft score`: BLEU of a file of hypotheses against a file of references.

The options and scores are those of `fairseq-score`, which fails with `--sacrebleu` and `--sentence-bleu`, and silently
ignores the surplus lines of the longer file.
"""

import argparse
from pathlib import Path

from s2sft_fairseq.data.text_files import check_texts, not_utf8, read_lines, streamed_lines
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.bleu import corpus_bleu, fairseq_bleu
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.settings import Settings


def main(arguments: list[str]) -> None:
    """Print the score that the options of `fairseq-score` ask for.

    Raises:
        UserError: if a file is missing, is not UTF-8 or is empty, or the two have different numbers of lines.
    """
    args = _parser().parse_args(arguments)
    hypotheses, references = _read(args.sys, args.ref)
    if args.sacrebleu:
        pairs = [
            Example(hypothesis, (reference,)) for hypothesis, reference in zip(hypotheses, references, strict=True)
        ]
        print(*corpus_bleu(pairs, Settings(lowercase=args.ignore_case)), sep="\n")
        return
    if args.ignore_case:
        hypotheses, references = ([line.lower() for line in lines] for lines in (hypotheses, references))
    if not args.sentence_bleu:
        print(fairseq_bleu(hypotheses, references, args.order))
        return
    for number, (hypothesis, reference) in enumerate(zip(hypotheses, references, strict=True)):
        print(number, fairseq_bleu([hypothesis], [reference], args.order, smooth=True))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="s2sft score", description="BLEU of hypotheses against references")
    parser.add_argument("-s", "--sys", default="-", metavar="FILE", help="hypotheses; -, the standard input (default)")
    parser.add_argument("-r", "--ref", required=True, metavar="FILE", help="references")
    parser.add_argument(
        "-o", "--order", type=int, default=4, choices=range(1, 5), help="words of the longest n-grams (default: 4)"
    )
    parser.add_argument("--ignore-case", action="store_true", help="lower-case both")
    parser.add_argument("--sacrebleu", action="store_true", help="compute sacreBLEU's score, and print its signature")
    parser.add_argument("--sentence-bleu", action="store_true", help="a score for each line, with +1 smoothing")
    return parser


def _read(hypothesis_path: str, reference_path: str) -> tuple[list[str], list[str]]:
    """Return the lines of both files; `-` reads the hypotheses from the standard input."""
    paths = [Path(path) for path in (hypothesis_path, reference_path) if path != "-"]
    check_texts([paths], allow_crlf=True)
    references = list(read_lines(paths[-1]))
    if hypothesis_path != "-":
        return list(read_lines(paths[0])), references
    lines = list(streamed_lines("-"))
    if wrong := {number: problem for number, (_, problem) in enumerate(lines, 1) if problem}:
        raise not_utf8("--sys", "-", wrong)
    hypotheses = [text for text, _ in lines]
    if len(hypotheses) != len(references):
        raise UserError(
            f"each reference needs a hypothesis: {reference_path} has {len(references)} lines, the standard input "
            f"{len(hypotheses)}"
        )
    return hypotheses, references
