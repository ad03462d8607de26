"""Rank recorded hypotheses again, with another length penalty and without the model.

A search for encoders does not depend on the length penalty, which only ranks hypotheses that have ended. So with
``--all-ended`` its record has the result of every penalty. The penalties are those of s2s-ft's program, and fairseq's.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s2sft_fairseq.data.bounded_files import parse_json
from s2sft_fairseq.data.text_files import read_lines
from s2sft_fairseq.errors import UserError, shown
from s2sft_fairseq.search_bounds import LENGTH_PENALTIES, MOST, SEARCH

PENALTIES = (*LENGTH_PENALTIES, "sum", "distance")

LEAST_LOG_PROB = -1e9
"""Far below the log-probability of any token."""


@dataclass(frozen=True)
class Ranking:
    """How hypotheses are ranked."""

    length_penalty: str = "length"
    """``length`` and ``gnmt`` divide the score, as in a search; ``sum`` adds ``lenpen`` for each token; ``distance``
    subtracts it for each token of difference to the expected length."""
    lenpen: float = 1.0
    min_len: int = 0
    """Hypotheses with fewer tokens before the last one, eos, are left out; a search would continue them."""
    expected_length: int | None = None
    """Tokens with eos, for ``distance``."""

    def problems(self) -> Iterator[str]:
        """Yield the problems of the options."""
        if what := SEARCH["lenpen"].problem(self.lenpen):
            yield f"--lenpen {what}"
        if not 0 <= self.min_len <= MOST:
            yield f"--min-len must be from 0 to {MOST}, but is {self.min_len}"
        expected = self.expected_length
        if (self.length_penalty == "distance") != (expected is not None):
            yield "--length-penalty distance and --expected-length belong together"
        elif expected is not None and not 1 <= expected <= MOST:
            yield f"--expected-length must be from 1 to {MOST}, but is {expected}"

    def score(self, log_prob: float, length: int) -> float:
        """Return the score of a hypothesis, from its log-probability and its number of tokens with eos."""
        if self.length_penalty == "sum":
            return log_prob + self.lenpen * length
        if self.length_penalty == "distance":
            return log_prob - self.lenpen * abs(length - (self.expected_length or 0))
        base = (5 + length) / 6 if self.length_penalty == "gnmt" else length
        return float(log_prob / base**self.lenpen)

    def rank(self, hypotheses: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return hypotheses with their new scores, the best first. Of equal ones, the first stays first."""
        ranked = []
        for hypothesis in hypotheses:
            length = len(hypothesis["tokens"])
            if length > self.min_len:
                score = self.score(math.fsum(hypothesis["positional_scores"]), length)
                ranked.append({**hypothesis, "score": round(score, 6)})
        return sorted(ranked, key=lambda hypothesis: -hypothesis["score"])


def read_record(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file that ``s2sft generate`` wrote.

    Raises:
        UserError: a line is not such an object; it is named.
    """
    for number, line in enumerate(read_lines(path), 1):
        try:
            record = parse_json(line)
        except ValueError as error:
            raise UserError(f"{path}:{number} must be JSON, but: {error}") from None
        if what := _problem(record):
            raise UserError(
                f"{path}:{number} must be an object of s2sft generate --output FILE.jsonl, with hypotheses, but {what}"
            )
        yield record


def _problem(record: Any) -> str | None:
    """Return what is wrong with an object of the file; None: nothing."""
    found = record.get("hypotheses") if isinstance(record, dict) else None
    if not isinstance(found, list):
        return f"is {shown(record)}"
    for hypothesis in found:
        if not isinstance(hypothesis, dict) or not isinstance(hypothesis.get("text"), str):
            return f"a hypothesis is {shown(hypothesis)}"
        tokens, scores = hypothesis.get("tokens"), hypothesis.get("positional_scores")
        if not isinstance(tokens, list) or not isinstance(scores, list) or len(tokens) != len(scores):
            return "a hypothesis lacks tokens or the score of each"
        numbers = all(type(score) in (int, float) and LEAST_LOG_PROB <= score <= 0 for score in scores)
        if not numbers or not all(isinstance(token, str) for token in tokens):
            return "a hypothesis has a score that is not a log-probability, or a token that is not a text"
    return None
