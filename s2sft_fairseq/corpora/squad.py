"""SQuAD v1.1 and v2.0 for reading comprehension, and v1.1 for question generation from a passage and an answer.

Raw files: ``train-v1.1.json`` and ``dev-v1.1.json`` (Rajpurkar et al., 2016), or ``train-v2.0.json`` and
``dev-v2.0.json``, where some questions have no answer (Rajpurkar et al., 2018). The test sets are not published.

Question generation also needs ``doclist-test.txt``, the titles of the articles of a test set (Du et al., 2017:
https://github.com/xinyadu/nqg, ``data/``). Du et al. test on 44 articles of the training file and validate on the
development file. The reversed split of Zhao et al. (2018) tests on the development file and validates on the 44
articles.

The published references of the first split are ``tgt-test.txt`` (the same repository, ``data/processed/``): the
questions in lower case, with the words of Stanford's tokenizer. If the folder has this file, the further set
``tgt-test`` has these references and the sources of ``test``.
"""

import json
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from s2sft_fairseq.corpora.reading import (
    Example,
    Malformed,
    MalformedRecordError,
    find,
    numbered_lines,
    read_data_list,
    require,
    take,
)
from s2sft_fairseq.errors import UserError

Record = TypeVar("Record")
PUBLISHED = "tgt-test.txt"
_BRACKET = re.compile(r"-[lr][rsc]b-")  # the brackets of the Penn Treebank, -lrb- for ( and so on
_NO_LETTER = re.compile(r"[\W_]+")


def read_squad(folder: Path, malformed: Malformed, *, reversed_split: bool = False) -> dict[str, Iterator[Example]]:
    """Return the splits for question generation: a source is the passage and the first answer, a target the question.

    Args:
        folder: the folder of the three raw files.
        malformed: collects malformed records.
        reversed_split: test on the development file.

    Raises:
        UserError: if a file is missing or is not JSON, the list of titles is empty, or a title is not that of an
            article of the training file.
    """
    train, dev, titles = require(folder, "train-v1.1.json", "dev-v1.1.json", "doclist-test.txt")
    held_out = {text.strip() for _, text in numbered_lines(titles, malformed) if text and text.strip()}
    articles = read_data_list(train)
    known = set(map(_title, articles))
    if unknown := sorted(held_out - known):
        raise UserError(f"{titles} names {len(unknown)} article(s) that {train} does not have: {', '.join(unknown)}")
    if not held_out:
        raise UserError(f"{titles} must name the articles of the test set, but is empty")
    of_titles = [article for article in articles if _title(article) in held_out]
    others = [article for article in articles if _title(article) not in held_out]
    splits = {
        "train": read_articles(train, others, malformed),
        "valid": read_articles(dev, read_data_list(dev), malformed),
        "test": read_articles(train, of_titles, malformed),
    }
    if reversed_split:
        splits["valid"], splits["test"] = splits["test"], splits["valid"]
    elif (path := find(folder, PUBLISHED)) is not None:
        splits["tgt-test"] = _with_references(path, read_articles(train, of_titles, malformed), malformed)
    return splits


def _title(article: Any) -> str:
    """Return the title of an article; "" if it is missing, which is reported when the article is read."""
    title = article.get("title") if isinstance(article, dict) else None
    return title if isinstance(title, str) else ""


def _with_references(path: Path, examples: Iterator[Example], malformed: Malformed) -> Iterator[Example]:
    """Yield the examples with lines of a file as references: for each question the line with the same letters.

    Raises:
        UserError: if there is a question without a line, or a line without a question.
    """
    lines: dict[str, deque[tuple[int, str]]] = defaultdict(deque)
    for number, text in numbered_lines(path, malformed):
        lines[_letters(text or "")].append((number, text or ""))
    for example in examples:
        (question,) = example.references
        found = lines[_letters(question)]
        if not found:
            raise UserError(
                f"{path} must hold the questions of the test set, but lacks that of {example.where}: {question!r:.80}"
            )
        yield Example(example.path, example.where, example.source, (found.popleft()[1],))
    if further := sorted(line for found in lines.values() for line in found):
        number, text = further[0]
        raise UserError(
            f"{path} must hold the questions of the test set alone, but {len(further):,} line(s) are none of them: "
            f"line {number} is {text!r:.80}"
        )


def _letters(text: str) -> str:
    """Return the letters and digits of a text, which tokenization does not change."""
    return _NO_LETTER.sub("", _BRACKET.sub("", text.lower()))


def read_articles(path: Path, articles: list[Any], malformed: Malformed) -> Iterator[Example]:
    """Yield an example for each question of these articles of a SQuAD file."""
    return read_records(path, articles, malformed, _example)


def read_records(
    path: Path, articles: list[Any], malformed: Malformed, make: Callable[[Path, str, str, Any], Record]
) -> Iterator[Record]:
    """Yield the results of `make`, which is called with file, name, passage and record of each question."""
    for number, article in enumerate(articles, 1):
        with malformed.record(path, f"article {number}"):
            title = take(article, "title", str)
            for place, paragraph in enumerate(take(article, "paragraphs", list), 1):
                with malformed.record(path, f"article {title!r}, paragraph {place}"):
                    passage = take(paragraph, "context", str)
                    for question_number, question in enumerate(take(paragraph, "qas", list), 1):
                        where = f"article {title!r}, paragraph {place}, question {question_number}"
                        with malformed.record(path, where):
                            yield make(path, where, passage, question)


def _example(path: Path, where: str, passage: str, question: Any) -> Example:
    answers = take(question, "answers", list)
    if not answers:
        raise MalformedRecordError("has no answer")
    answer, _ = read_answer(answers[0], passage)
    return Example(path, where, (passage, answer), (take(question, "question", str),))


def read_answer(record: Any, passage: str) -> tuple[str, int]:
    """Return the text of an answer and the offset of its first character in the passage.

    Raises:
        MalformedRecordError: if the passage does not have the answer at that offset.
    """
    answer, start = take(record, "text", str), take(record, "answer_start", int)
    if passage[start : start + len(answer)] != answer or start < 0:
        raise MalformedRecordError(f"the answer {answer!r:.60} is not at character {start} of its passage")
    return answer, start


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
    """Text and offset in the passage of each answer; (): there is no answer."""


def read_squad_files(folder: Path, version: str, malformed: Malformed) -> dict[str, Iterator[SquadQuestion]]:
    """Return ``train`` and ``valid``.

    Raises:
        UserError: if a file is missing or is not JSON.
    """
    train, dev = require(folder, f"train-v{version}.json", f"dev-v{version}.json")
    return {"train": read_squad_questions(train, malformed), "valid": read_squad_questions(dev, malformed)}


def read_squad_questions(path: Path, malformed: Malformed) -> Iterator[SquadQuestion]:
    """Return an iterator over the questions of a file.

    Raises:
        UserError: if the file is not JSON.
    """
    return read_records(path, read_data_list(path), malformed, _question)


def read_right_answers(path: Path) -> dict[str, tuple[str, ...]]:
    """Return the texts of the answers to each question, by its id; like the official programs, check nothing else.

    Raises:
        UserError: if the file is not JSON, or a question lacks its id or its answers.
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
    """Write questions in the format of SQuAD."""
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
