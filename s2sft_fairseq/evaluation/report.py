"""Scores as a table, as JSON and as rows for LaTeX."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from s2sft_fairseq.evaluation.evaluate import Score
from s2sft_fairseq.evaluation.settings import Settings

Systems = Mapping[str, Sequence[Score]]
"""The scores of each system, by its name; all have the same metrics."""


def as_table(systems: Systems) -> str:
    """Return a row a system, and below it what the intervals, differences and signatures are."""
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
    """Return a row a system; what the columns are is in comments."""
    rows = [f"{_escaped(system)} & " + " & ".join(f"{score.value:.2f}" for score in scores) + r" \\"
            for system, scores in systems.items()]  # fmt: skip
    return "\n".join([*(f"% {line}" for line in [" & ".join(_names(systems)), *_signatures(systems)]), *rows])


def as_json(systems: Systems, sizes: Mapping[str, int], settings: Settings) -> dict[str, Any]:
    """Return everything, with `sizes` the numbers of examples."""
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
    """A line for the scores that share a signature."""
    shared: dict[str, list[str]] = {}
    for scores in systems.values():
        for score in scores:
            names = shared.setdefault(score.signature, [])
            names += [score.name] if score.name not in names else []
    return [f"{', '.join(names)}: {signature}" for signature, names in shared.items()]


def _escaped(text: str) -> str:
    return "".join(f"\\{letter}" if letter in "&%$#_{}" else letter for letter in text)
