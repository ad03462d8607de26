"""All metrics by name, the scores of a system with an optional baseline, and tables of these scores."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from s2sft_fairseq.evaluation.answers import coqa, squad_v1, squad_v2
from s2sft_fairseq.evaluation.bleu import dialogue_bleu, distinct, sacrebleu
from s2sft_fairseq.evaluation.coco import coco_bleu, coco_rouge, meteor
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.glue import accuracy, correlation, f1, matthews
from s2sft_fairseq.evaluation.normalisation import signature
from s2sft_fairseq.evaluation.plausibility import text_warnings, zero_warnings
from s2sft_fairseq.evaluation.rouge import perl_rouge, rouge
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.evaluation.statistics import Difference, Interval, Measured, confidence_intervals, differences

logger = logging.getLogger(__name__)

METRICS: dict[str, Callable[[Sequence[Example], Settings], Measured]] = {
    metric.__name__: metric
    for metric in (
        *(rouge, perl_rouge, sacrebleu, coco_bleu, meteor, coco_rouge, dialogue_bleu, distinct, coqa),
        *(accuracy, f1, matthews, correlation, squad_v1, squad_v2),
    )
}


@dataclass(frozen=True)
class Score:
    """One score of a system."""

    name: str
    value: float
    """In percent, as in papers."""
    signature: str
    interval: Interval | None = None
    """The 95 % confidence interval."""
    difference: Difference | None = None
    """The difference to the baseline."""


def evaluate(
    examples: Sequence[Example],
    settings: Settings,
    *,
    baseline: Sequence[Example] = (),
    resamples: int = 0,
    seed: int = 0,
    system: str = "system",
) -> list[Score]:
    """Score a system, and log warnings about scores that say little.

    Args:
        examples: the examples, each with at least one reference.
        settings: the settings that the examples were read with.
        baseline: the examples of another system, with the same references in the same order.
        resamples: number of resamples for confidence intervals and the comparison with the baseline; 0: neither.
        seed: seed of the resamples.
        system: the name of the system, for warnings.

    Raises:
        UserError: a package that a metric needs is not installed.
    """
    size = len(examples)
    scores = []
    for warning in text_warnings(examples, settings):
        logger.warning(f"{system}: {warning}")
    for metric in settings.metrics:
        measured = METRICS[metric]([*examples, *baseline], settings)
        statistics = measured.statistics
        for warning in zero_warnings(metric, statistics, examples, settings):
            logger.warning(f"{system}: {warning}")
        intervals = confidence_intervals(statistics, size, resamples, seed) if resamples else {}
        found = differences(statistics, size, resamples, seed) if resamples and baseline else {}
        told = f"{measured.signature}|{signature(settings)}|{_references(examples, settings)}"
        scores += [
            Score(name, value, told, intervals.get(name), found.get(name))
            for name, value in statistics.over(np.arange(size)).items()
        ]
    return scores


def _references(examples: Sequence[Example], settings: Settings) -> str:
    """Return the part of the signature on references: their number, their variant, and how examples are grouped."""
    counts = [len(example.references) for example in examples]
    told = f"refs:{min(counts)}" + (f"-{max(counts)}" if min(counts) < max(counts) else "")
    told += f"|variant:{settings.reference_variant}" if settings.reference_variant else ""
    return f"{told}|group:source" if settings.group_by_source else told


Systems = Mapping[str, Sequence[Score]]
"""The scores of each system, by its name; all have the same metrics."""


def as_table(systems: Systems) -> str:
    """Return a table with a row for each system; the differences to the baseline and the signatures follow."""
    names = _names(systems)
    rows = [["", *names], *([system, *map(_cell, scores)] for system, scores in systems.items())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]
    for system, scores in systems.items():
        for score in scores:
            if score.difference:
                change = score.difference
                interval = f" [{change.interval[0]:+.2f}, {change.interval[1]:+.2f}]" if change.interval else ""
                lines.append(
                    f"{system}: {score.name} {change.value:+.2f}{interval} to the baseline, p = {change.p_value:.4f}"
                )
    return "\n".join([*lines, *_signatures(systems)])


def as_latex(systems: Systems) -> str:
    """Return a LaTeX row for each system, after comments with the names and signatures of the columns."""
    rows = [f"{_escaped(system)} & " + " & ".join(f"{score.value:.2f}" for score in scores) + r" \\"
            for system, scores in systems.items()]  # fmt: skip
    return "\n".join([*(f"% {line}" for line in [" & ".join(_names(systems)), *_signatures(systems)]), *rows])


def as_json(systems: Systems, sizes: Mapping[str, int], settings: Settings) -> dict[str, Any]:
    """Return settings, scores and `sizes`, the number of examples of each system."""
    return {
        "settings": asdict(settings),
        "systems": {
            system: {"examples": sizes[system], "scores": [asdict(score) for score in scores]}
            for system, scores in systems.items()
        },
    }


def _names(systems: Systems) -> list[str]:
    return [score.name for score in next(iter(systems.values()))]


def _cell(score: Score) -> str:
    return f"{score.value:.2f}" + (f" [{score.interval[0]:.2f}, {score.interval[1]:.2f}]" if score.interval else "")


def _signatures(systems: Systems) -> list[str]:
    """Return a line for each signature, with the names of the scores that share it."""
    shared: dict[str, list[str]] = {}
    for scores in systems.values():
        for score in scores:
            names = shared.setdefault(score.signature, [])
            names += [score.name] if score.name not in names else []
    return [f"{', '.join(names)}: {signature}" for signature, names in shared.items()]


def _escaped(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "&%$#_{}" else letter for letter in text)
