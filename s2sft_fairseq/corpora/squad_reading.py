"""SQuAD v1.1 and v2.0 as reading comprehension: questions, passages, and where the answers are.

Raw files: ``train-v1.1.json`` and ``dev-v1.1.json`` (Rajpurkar et al., 2016), or ``train-v2.0.json`` and
``dev-v2.0.json``, where some questions have no answer (Rajpurkar et al., 2018). The test sets are not published.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from s2sft_fairseq.corpora.json_records import read_data_list
from s2sft_fairseq.corpora.malformed import Malformed, MalformedRecordError, take
from s2sft_fairseq.corpora.raw_files import require
from s2sft_fairseq.corpora.squad import read_answer, read_records
from s2sft_fairseq.errors import UserError

VERSIONS = ("1.1", "2.0")


@dataclass(frozen=True)
class SquadQuestion:
    """A question of a SQuAD file; `path` and `where` are for messages."""

    path: Path
    where: str
    id: str
    text: str
    passage: str
    answers: tuple[tuple[str, int], ...]
    """Text and first character in the passage of each; (): there is no answer."""


def read_squad_files(folder: Path, version: str, malformed: Malformed) -> dict[str, Iterator[SquadQuestion]]:
    """``train`` and ``valid``.

    Raises:
        UserError: if a file is missing or no JSON.
    """
    train, dev = require(folder, f"train-v{version}.json", f"dev-v{version}.json")
    return {"train": read_squad_questions(train, malformed), "valid": read_squad_questions(dev, malformed)}


def read_squad_questions(path: Path, malformed: Malformed) -> Iterator[SquadQuestion]:
    """Yield the questions of a file.

    Raises:
        UserError: if it is no JSON.
    """
    return read_records(path, read_data_list(path), malformed, _question)


def read_right_answers(path: Path) -> dict[str, tuple[str, ...]]:
    """Read the texts of the answers to each question, by its id, and nothing else, as the official programs do.

    Raises:
        UserError: if it is no JSON, or a question lacks its id or its answers.
    """
    malformed, found = Malformed(), {}
    for number, article in enumerate(read_data_list(path)):
        with malformed.record(path, f"article {number}"):
            for paragraph in take(article, "paragraphs", list):
                for question in take(paragraph, "qas", list):
                    answers = take(question, "answers", list)
                    found[take(question, "id", str)] = tuple(take(answer, "text", str) for answer in answers)
    if malformed.records:
        raise UserError.of(malformed.lines(), f"{path} must be a file of SQuAD's:")
    return found


def write_squad_file(path: Path, questions: Iterable[SquadQuestion]) -> None:
    """Write questions in the layout that they are read from."""
    paragraphs = [
        {
            "context": question.passage,
            "qas": [
                {
                    "id": question.id,
                    "question": question.text,
                    "answers": [{"text": text, "answer_start": start} for text, start in question.answers],
                    "is_impossible": not question.answers,
                }
            ],
        }
        for question in questions
    ]
    path.write_text(json.dumps({"data": [{"title": "", "paragraphs": paragraphs}]}), encoding="utf-8")


def _question(path: Path, where: str, passage: str, record: Any) -> SquadQuestion:
    identity, text, answers = take(record, "id", str), take(record, "question", str), take(record, "answers", list)
    is_impossible = "is_impossible" in record and take(record, "is_impossible", bool)
    if bool(answers) == is_impossible:
        raise MalformedRecordError("is impossible, but has answers" if answers else "has no answer")
    return SquadQuestion(path, where, identity, text, passage, tuple(read_answer(a, passage) for a in answers))
