"""The findings of ``s2sft doctor``: facts, notes and problems, as text or as JSON."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from s2sft_fairseq.errors import UserError

Facts = dict[str, Any]
"""A value by its name: a text, a number, a truth value, a list of these, or None for what is missing."""


@dataclass
class Report:
    """Findings, in the order in which they were made."""

    facts: dict[str, Facts] = field(default_factory=dict)
    """Facts by the title of their section."""
    notes: list[str] = field(default_factory=list)
    """Findings that do not stop a training or a generation."""
    problems: list[str] = field(default_factory=list)
    """Findings that stop one or spoil its results, each with its remedy."""

    @contextlib.contextmanager
    def collected(self) -> Iterator[None]:
        """Add the problems of a `UserError` that the block raises to the report, each of them once."""
        try:
            yield
        except UserError as error:
            self.problems += [problem for problem in error.problems if problem not in self.problems]

    def text(self) -> str:
        """Return the facts in sections and the notes, a line each. The problems are for a `UserError`."""
        lines = []
        for title, facts in self.facts.items():
            width = max(map(len, facts), default=0)
            lines += [title, *(f"  {name:{width}}  {_shown(value)}".rstrip() for name, value in facts.items())]
        if self.notes:
            lines += ["notes", *(f"  - {note}" for note in self.notes)]
        return "\n".join(lines)

    def json(self) -> str:
        """Return all findings as a JSON object."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or "none"
    if value is None:
        return "missing"
    return f"{value:,}" if isinstance(value, int | float) else str(value)
