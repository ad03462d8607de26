"""``s2sft evaluate``: score generated text as the papers do, with a signature for each score."""

import argparse
import json
import math
from argparse import BooleanOptionalAction
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path

from s2sft_fairseq.data.text_files import write_lines
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.evaluate import METRICS, as_json, as_latex, as_table, evaluate
from s2sft_fairseq.evaluation.examples import Example, Lead, read_answers, read_examples, read_table
from s2sft_fairseq.evaluation.settings import (
    BRACKETS,
    CONTRACTIONS,
    DIGITS,
    FIX_STYLES,
    MULTI_REFERENCE,
    PRETOKENIZERS,
    ROUGE_TOKENIZERS,
    TASKS,
    UNICODE_FORMS,
    Settings,
)

SQUAD_METRICS = {"squad_v1", "squad_v2"}
LABEL_METRICS = {"accuracy", "f1", "matthews", "correlation"}
DEFAULT_RESAMPLES = 1000  # with --baseline-hyp
MOST_RESAMPLES = 1_000_000


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Raises:
        UserError: naming everything that is wrong with the options, or with the files.
    """
    options = _parser().parse_args(arguments)
    settings = _settings(options)
    if problems := list(_problems(options, settings)):
        raise UserError.of(problems)

    def read(system: Path | Lead) -> list[Example]:
        if isinstance(system, Path) and SQUAD_METRICS.intersection(settings.metrics):
            return read_answers(system, options.ref[0], options.null_odds, settings)
        if isinstance(system, Path) and system.suffix == ".tsv" and LABEL_METRICS.intersection(settings.metrics):
            return read_table(system, options.ref[0], settings)
        return read_examples(system, options.ref, options.src, settings)

    scored = [*options.hyp, *([Lead.parse(options.lead)] if options.lead else [])]
    systems = {str(system): read(system) for system in scored}
    baseline = read(options.baseline_hyp) if options.baseline_hyp else []
    resamples = DEFAULT_RESAMPLES if options.bootstrap is None and baseline else options.bootstrap or 0
    scores = {
        name: evaluate(examples, settings, baseline=baseline, resamples=resamples, seed=options.seed, system=name)
        for name, examples in systems.items()
    }
    print(as_latex(scores) if options.latex else as_table(scores))
    if options.json:
        sizes = {name: len(examples) for name, examples in systems.items()}
        text = json.dumps(as_json(scores, sizes, settings), indent=2, ensure_ascii=False)
        write_lines(options.json, text.split("\n"))


def _settings(options: argparse.Namespace) -> Settings:
    """Return the settings of the task, with the given options in place of its own."""
    given = {field.name: getattr(options, field.name) for field in fields(Settings)}
    changed = {name: value for name, value in given.items() if value is not None}
    if "metrics" in changed:
        changed["metrics"] = tuple(changed["metrics"])
    return replace(TASKS[options.task], **changed)


def _problems(options: argparse.Namespace, settings: Settings) -> Iterator[str]:
    for name in sorted({str(path) for path in options.hyp if options.hyp.count(path) > 1}):
        yield f"--hyp names {name} twice"
    for name in sorted({name for name in settings.metrics if settings.metrics.count(name) > 1}):
        yield f"--metrics names {name} twice"
    if SQUAD_METRICS.intersection(settings.metrics) and len(options.ref) > 1:
        yield f"--ref must be SQuAD's own file alone, but names {len(options.ref)} files"
    if options.null_odds and "squad_v2" not in settings.metrics:
        yield "--null-odds is for --metrics squad_v2"
    if options.null_odds and (len(options.hyp) > 1 or options.baseline_hyp):
        yield "--null-odds belongs to one file of answers: score one --hyp, and no --baseline-hyp"
    if settings.null_threshold is not None and not options.null_odds:
        yield "--null-threshold needs --null-odds, the file of the odds that it is compared with"
    if settings.null_threshold is not None and math.isnan(settings.null_threshold):
        yield f"--null-threshold must be a number, but is {settings.null_threshold}"
    try:
        Lead.parse(options.lead or "1-words")
    except ValueError as error:
        yield f"--lead {error}"
    if options.lead and not options.src:
        yield "--lead needs --src, the texts whose beginnings it scores"
    if options.lead and (SQUAD_METRICS | LABEL_METRICS).intersection(settings.metrics):
        yield f"--lead is for generated text, but --task {options.task} is not"
    if settings.group_by_source and not options.src:
        yield f"--task {options.task} groups lines by their source: give --src, or --no-group-by-source"
    for option, value in (
        ("--truncate", settings.truncate),
        ("--min-sentence-words", settings.min_sentence_words),
        ("--bootstrap", options.bootstrap or 0),
        ("--seed", options.seed),
    ):
        if value < 0:
            yield f"{option} must be at least 0, but is {value}"
    if not 0 <= settings.duplicate_rate <= 1:
        yield f"--duplicate-rate must be between 0 and 1, but is {settings.duplicate_rate}"
    if (options.bootstrap or 0) > MOST_RESAMPLES:
        yield f"--bootstrap must be at most {MOST_RESAMPLES}, but is {options.bootstrap}"
    if options.baseline_hyp and options.bootstrap == 0:
        yield "--baseline-hyp needs resamples, but --bootstrap is 0"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="s2sft evaluate",
        description=f"{__doc__} A task chooses metrics and what is done to the texts; docs/evaluation.md has a table.",
    )
    parser.add_argument("--task", choices=TASKS, required=True, help="the benchmark whose settings to take")
    parser.add_argument(
        "--hyp",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="hypotheses, one a line; a file for each system. For labels also a .tsv of s2sft predict, for SQuAD "
        "its JSON",
    )
    parser.add_argument(
        "--ref", type=Path, nargs="+", required=True, metavar="FILE",
        help="references, one a line; several files give several references, and empty lines none. In .jsonl "
        'files, the list of texts "refs", or the text "tgt". For SQuAD, its own file of questions',
    )  # fmt: skip
    parser.add_argument(
        "--null-odds", type=Path, metavar="FILE",
        help="SQuAD v2.0: the odds that a question has no answer, JSON; the best threshold is searched, too",
    )  # fmt: skip
    parser.add_argument("--src", type=Path, metavar="FILE", help="sources, one a line")
    parser.add_argument(
        "--lead", metavar="N-sentences|N-words",
        help="score the beginning of each source, too: 3-sentences is usual for CNN/DailyMail, 1-sentences for XSum",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write settings, scores and signatures there as well")
    parser.add_argument("--latex", action="store_true", help="print rows for LaTeX in place of a table")
    parser.add_argument(
        "--bootstrap", type=int, metavar="N",
        help=f"resamples for 95 %% confidence intervals (default: none, {DEFAULT_RESAMPLES} with --baseline-hyp)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the resamples (default: 0)")
    parser.add_argument(
        "--baseline-hyp", type=Path, metavar="FILE",
        help="hypotheses of another system: differences to it, with the interval of paired resamples and p of "
        "approximate randomization",
    )  # fmt: skip
    _add_metrics(parser.add_argument_group("metrics (default: the task's)"))
    _add_texts(parser.add_argument_group("what is done to the texts (default: the task's)"))
    return parser


def _add_metrics(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--metrics", nargs="+", choices=METRICS, help="what to compute")
    group.add_argument("--stem", action=BooleanOptionalAction, help="ROUGE: Porter's stemmer")
    group.add_argument(
        "--rouge-tokenizer", choices=ROUGE_TOKENIZERS,
        help="ROUGE: ascii, its own, knows a-z and 0-9 only; unicode the letters of all scripts; space keeps words as "
        "they are. The last two are not stemmed",
    )  # fmt: skip
    group.add_argument(
        "--multi-reference", choices=MULTI_REFERENCE,
        help="ROUGE: the best score over the references, or the mean of the best over each choice of all but one",
    )  # fmt: skip
    group.add_argument(
        "--irregular-forms",
        action=BooleanOptionalAction,
        help="Perl ROUGE: look words up in WordNet's list before stemming",
    )
    group.add_argument(
        "--null-threshold", type=float, metavar="X", help="SQuAD v2.0: odds above which there is no answer"
    )
    group.add_argument("--bleu-tokenize", metavar="NAME", help="sacreBLEU's tokenizer: 13a, intl, zh, none, ...")


def _add_texts(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--hyp-separator", metavar="TEXT", help="separator of the sentences of a hypothesis")
    group.add_argument("--ref-separator", metavar="TEXT", help="separator of the sentences of a reference")
    group.add_argument(
        "--pretokenize",
        choices=PRETOKENIZERS,
        help="split off punctuation, in hypotheses and references; razdel: of Russian, with the package of this name",
    )
    group.add_argument(
        "--bert-words", action=BooleanOptionalAction,
        help="hypotheses: split off every punctuation mark, as BERT's tokenizer does, before the next three steps",
    )  # fmt: skip
    group.add_argument("--contractions", choices=CONTRACTIONS, help="join hypotheses at apostrophes, as that task does")
    group.add_argument(
        "--fix-tokenization", choices=FIX_STYLES,
        help="hypotheses from BERT's words to the Penn Treebank's: cased as for CNN/DailyMail, lower as for Gigaword "
        "and question generation, contractions alone as for XSum",
    )  # fmt: skip
    group.add_argument("--brackets", choices=BRACKETS, help="brackets of hypotheses become -LRB- and so on")
    group.add_argument(
        "--normalise-references", action=BooleanOptionalAction,
        help="apply these four steps to references, too, if they are plain text and not tokenized",
    )  # fmt: skip
    group.add_argument("--digits", choices=DIGITS, help="the digit 1, or all digits, of hypotheses become #")
    group.add_argument(
        "--min-sentence-words", type=int, metavar="N", help="drop sentences of hypotheses with fewer words"
    )
    group.add_argument(
        "--duplicate-rate", type=float, metavar="X",
        help="drop sentences of hypotheses if a larger share of their words occurs in earlier ones (1: none)",
    )  # fmt: skip
    group.add_argument("--truncate", type=int, metavar="N", help="words of a hypothesis to keep (0: all)")
    group.add_argument(
        "--unicode-form", choices=UNICODE_FORMS,
        help="convert all texts to this Unicode normalization form first: in nfc, e with an accent is one character; "
        "in nfkc, full-width letters and ligatures are ordinary ones, too",
    )  # fmt: skip
    group.add_argument("--lowercase", action=BooleanOptionalAction, help="lower-case all texts")
    group.add_argument("--strip-accents", action=BooleanOptionalAction, help="take accents off letters")
    group.add_argument("--characters", action=BooleanOptionalAction, help="take every character for a word")
    group.add_argument(
        "--group-by-source", action=BooleanOptionalAction,
        help="lines with the same source are one example: all its references, its last hypothesis",
    )  # fmt: skip
    group.add_argument("--reference-variant", metavar="NAME", help="a name for the references' version, for signatures")
