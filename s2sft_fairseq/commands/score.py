"""`s2sft score`: BLEU of a file of hypotheses against a file of references.

fairseq's own options and figures; written anew because `fairseq-score` fails with `--sacrebleu` and `--sentence-bleu`,
and scores the first lines alone where one file is shorter than the other.
"""

import sys
from pathlib import Path

import sacrebleu
from fairseq.data import Dictionary
from fairseq.scoring import bleu
from fairseq_cli.score import get_parser

from s2sft_fairseq.errors import UserError


def main(arguments: list[str]) -> None:
    """Print the score that the options of `fairseq-score` ask for.

    Raises:
        UserError: a file is missing, is not UTF-8 or is empty, or the two have different numbers of lines.
    """
    args = get_parser().parse_args(arguments)
    hypotheses = sys.stdin.read().splitlines() if args.sys == "-" else _lines("--sys", args.sys)
    references = _lines("--ref", args.ref)
    if len(hypotheses) != len(references) or not references:
        raise UserError(
            f"--sys {args.sys} and --ref {args.ref} need one line each per sentence: they have {len(hypotheses):,} and "
            f"{len(references):,} lines"
        )
    if args.sacrebleu:
        scorer = sacrebleu.BLEU(lowercase=args.ignore_case)
        print(scorer.corpus_score(hypotheses, [references]))
        print(scorer.get_signature())
        return
    if args.ignore_case:
        hypotheses, references = ([line.lower() for line in lines] for lines in (hypotheses, references))
    dictionary = Dictionary()
    scorer = bleu.Scorer(bleu.BleuConfig(pad=dictionary.pad(), eos=dictionary.eos(), unk=dictionary.unk()))
    for number, (hypothesis, reference) in enumerate(zip(hypotheses, references, strict=True)):
        if args.sentence_bleu:
            scorer.reset(one_init=True)
        scorer.add(dictionary.encode_line(reference), dictionary.encode_line(hypothesis))
        if args.sentence_bleu:
            print(number, scorer.result_string(args.order))
    if not args.sentence_bleu:
        print(scorer.result_string(args.order))


def _lines(option: str, path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").split("\n")
    except FileNotFoundError:
        raise UserError(f"{option} {path}: no such file") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{option} {path}: not UTF-8 (byte {error.start:,})") from None
