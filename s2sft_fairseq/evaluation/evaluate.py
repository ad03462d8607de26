"""From examples of one or two systems to scores."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.metrics import METRICS
from s2sft_fairseq.evaluation.normalisation import signature
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.evaluation.significance import Difference, Interval, confidence_intervals, differences


@dataclass(frozen=True)
class Score:
    """One figure."""

    name: str
    value: float
    """In percent, as papers write it."""
    signature: str
    interval: Interval | None = None
    """The 95 % confidence interval."""
    difference: Difference | None = None
    """To the baseline."""


def evaluate(
    examples: Sequence[Example],
    settings: Settings,
    *,
    baseline: Sequence[Example] = (),
    resamples: int = 0,
    seed: int = 0,
) -> list[Score]:
    """Score a system.

    Args:
        examples: with at least one reference each.
        settings: those that the examples were read with.
        baseline: of another system, with the same references in the same order.
        resamples: for confidence intervals and the comparison with the baseline; 0 for neither.
        seed: of the resamples.

    Raises:
        UserError: a package that a metric needs is not installed.
    """
    size = len(examples)
    scores = []
    for metric in settings.metrics:
        measured = METRICS[metric]([*examples, *baseline], settings)
        statistics = measured.statistics
        intervals = confidence_intervals(statistics, size, resamples, seed) if resamples else {}
        found = differences(statistics, size, resamples, seed) if resamples and baseline else {}
        told = f"{measured.signature}|{signature(settings)}|{_references(examples, settings)}"
        scores += [
            Score(name, value, told, intervals.get(name), found.get(name))
            for name, value in statistics.over(np.arange(size)).items()
        ]
    return scores


def _references(examples: Sequence[Example], settings: Settings) -> str:
    """The part of the signature on the references: how many an example has, which ones, and how examples came about."""
    counts = [len(example.references) for example in examples]
    told = f"refs:{min(counts)}" + (f"-{max(counts)}" if min(counts) < max(counts) else "")
    told += f"|variant:{settings.reference_variant}" if settings.reference_variant else ""
    return f"{told}|group:source" if settings.group_by_source else told
