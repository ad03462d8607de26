"""The choice of a checkpoint and a search in ``s2sft finetune``: metrics, searches to try, and evaluation."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.evaluate import METRICS as ALL
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.plausibility import Letters
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.plots.training import parse

REPORTED = ("rouge", "sacrebleu")
LENGTH_PENALTIES = (1.0, 0.6, 1.6)
NO_REPEAT = 3
"""Blocking of repeated n-grams of this size is tried with the best length penalty."""


class Metric(NamedTuple):
    """One of the scores of a metric of ``s2sft evaluate``."""

    name: str
    score: str

    def of(self, scores: Mapping[str, float]) -> float:
        """Return this score of all scores."""
        return scores[self.score]


METRICS: dict[str, Metric | None] = {
    "rouge-l": Metric("rouge", "ROUGE-L"),
    "rouge-1": Metric("rouge", "ROUGE-1"),
    "rouge-2": Metric("rouge", "ROUGE-2"),
    "bleu": Metric("sacrebleu", "BLEU"),
    "meteor": Metric("meteor", "METEOR"),
    "loss": None,
}


def computed(metric: str) -> list[str]:
    """Return the metrics of ``s2sft evaluate`` to compute: always ROUGE and BLEU, and the given one."""
    chosen = METRICS[metric]
    return list(dict.fromkeys((*REPORTED, *([chosen.name] if chosen else []))))


def metric_problems(metric: str) -> Iterator[str]:
    """Yield the missing packages of the metrics, so that they are reported before hours of training."""
    for name in computed(metric):
        try:
            ALL[name]([Example("a", ("a",))], Settings())
        except UserError as error:
            yield from error.problems


Search = dict[str, Any]
"""Options of ``s2sft generate`` by name."""


def search_choices(beam: int, least: int) -> list[Callable[[Search], Search]]:
    """Return functions that each make the next search to try from the best search so far.

    Args:
        beam: beam size.
        least: the minimum length to try, which nearly all targets have. A barely trained model writes shorter texts.
    """
    penalties = LENGTH_PENALTIES if beam > 1 else ()
    choices: list[Callable[[Search], Search]] = [
        *(lambda _, value=value: {"beam": beam, "lenpen": value} for value in penalties),
        lambda best: {**best, "no_repeat_ngram_size": NO_REPEAT},
    ]
    return [*choices, lambda best: {**best, "min_len": least}] if least > 1 else choices


def held_out_losses(log: Path) -> dict[int, float]:
    """Return the held-out loss by the number of updates, from the log of a training."""
    records = map(parse, log.read_text(encoding="utf-8").splitlines())
    return {int(each[1]["num_updates"]): float(each[1]["loss"]) for each in records if each and each[0] == "held out"}


def evaluation_options(targets: Path, dictionary: Path, lines: int = 1000) -> list[str]:
    """Return the options of ``s2sft evaluate`` for the script of the targets and the letters that a model can write.

    ROUGE's own tokenizer only keeps the letters a to z and digits. If more than one of 50 letters is another one, use
    the tokenizer for all scripts. If most letters are of scripts without spaces, make every character a word. If no
    symbol of the dictionary has a capital letter, ignore case.
    """
    with dictionary.open(encoding="utf-8") as file:
        symbols = [line.split(" ")[0] for line in file]
    words = ["--task", "rouge"]
    # BERT's lower-cased vocabulary has the symbol of the real numbers, a capital letter without a lower-case form.
    if not any(symbol != symbol.lower() for symbol in symbols if symbol[0] not in "[<"):
        words.append("--lowercase")
    with targets.open(encoding="utf-8") as file:
        text = "".join(line for _, line in zip(range(lines), file, strict=False))
    letters = Letters.of(text)
    if letters.has_no_words:
        return [*words, "--characters", "--rouge-tokenizer", "space"]
    if letters.are_dropped:
        return [*words, "--rouge-tokenizer", "unicode"]
    return words
