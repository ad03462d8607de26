"""SQuAD v1.1 turned round: from a passage and an answer to the question.

Raw files: ``train-v1.1.json`` and ``dev-v1.1.json`` (Rajpurkar et al., 2016), and the titles of the articles of the
test set, ``doclist-test.txt`` (Du et al., 2017: https://github.com/xinyadu/nqg, ``data/``). Du et al. test on 44
articles of the training file and validate on the development file. The reversed split of Zhao et al. (2018) tests on
the development file and validates on the 44 articles.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from s2sft_fairseq.corpora.example import Example
from s2sft_fairseq.corpora.json_records import read_data_list
from s2sft_fairseq.corpora.malformed import Malformed, MalformedRecordError, take
from s2sft_fairseq.corpora.raw_files import numbered_lines, require
from s2sft_fairseq.errors import UserError

Record = TypeVar("Record")


def read_squad(folder: Path, malformed: Malformed, *, reversed_split: bool = False) -> dict[str, Iterator[Example]]:
    """The three splits; a source is the passage and the first answer, the target the question.

    Args:
        folder: with the three raw files.
        reversed_split: test on the development file.

    Raises:
        UserError: if a file is missing or no JSON, or a title of the list is no article of the training file.
    """
    train, dev, titles = require(folder, "train-v1.1.json", "dev-v1.1.json", "doclist-test.txt")
    held_out = {text.strip() for _, text in numbered_lines(titles, malformed) if text and text.strip()}
    articles = read_data_list(train)
    known = {article.get("title") for article in articles if isinstance(article, dict)}
    if unknown := sorted(held_out - known):
        raise UserError(f"{titles} names {len(unknown)} article(s) that {train} does not have: {', '.join(unknown)}")
    if not held_out:
        raise UserError(f"{titles} must name the articles of the test set, but is empty")
    of_titles = [a for a in articles if isinstance(a, dict) and a.get("title") in held_out]
    others = [a for a in articles if not (isinstance(a, dict) and a.get("title") in held_out)]
    splits = {
        "train": read_articles(train, others, malformed),
        "valid": read_articles(dev, read_data_list(dev), malformed),
        "test": read_articles(train, of_titles, malformed),
    }
    if reversed_split:
        splits["valid"], splits["test"] = splits["test"], splits["valid"]
    return splits


def read_articles(path: Path, articles: list[Any], malformed: Malformed) -> Iterator[Example]:
    """Yield an example for each question of these articles of a SQuAD file."""
    return read_records(path, articles, malformed, _example)


def read_records(
    path: Path, articles: list[Any], malformed: Malformed, make: Callable[[Path, str, str, Any], Record]
) -> Iterator[Record]:
    """Yield what `make` makes of each question of these articles: of the file, a name, the passage and the record."""
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
    """The text of an answer, and the character of the passage with which it begins.

    Raises:
        MalformedRecordError: if it is not there.
    """
    answer, start = take(record, "text", str), take(record, "answer_start", int)
    if passage[start : start + len(answer)] != answer or start < 0:
        raise MalformedRecordError(f"the answer {answer!r:.60} is not at character {start} of its passage")
    return answer, start
