"""CoQA as a generation task: from a passage and a conversation about it to the answer to its last question.

Raw files: ``coqa-train-v1.0.json`` and ``coqa-dev-v1.0.json`` (Reddy et al., 2019; https://stanfordnlp.github.io/coqa).
The test set is not published; UniLM and ERNIE-GEN report on the development set, which has three further answers to
each question. Fields of a source: the passage, all earlier questions and answers, and the question.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from s2sft_fairseq.corpora.example import Example
from s2sft_fairseq.corpora.json_records import read_data_list
from s2sft_fairseq.corpora.malformed import Malformed, MalformedRecordError, take
from s2sft_fairseq.corpora.raw_files import require


def read_coqa(folder: Path, malformed: Malformed) -> dict[str, Iterator[Example]]:
    """``train`` and ``valid``.

    Raises:
        UserError: if a file is missing or no JSON.
    """
    train, dev = require(folder, "coqa-train-v1.0.json", "coqa-dev-v1.0.json")
    return {"train": read_conversations(train, malformed), "valid": read_conversations(dev, malformed)}


def read_conversations(path: Path, malformed: Malformed) -> Iterator[Example]:
    """Yield an example for each question; the first reference is the answer that the conversation goes on from."""
    for number, conversation in enumerate(read_data_list(path), 1):
        where = f"conversation {number}"
        with malformed.record(path, where):
            where = f"conversation {take(conversation, 'id', str)}"
        with malformed.record(path, where):
            passage = take(conversation, "story", str)
            questions = _texts(conversation, "questions")
            answers = [_texts(conversation, "answers")]
            further = take(conversation, "additional_answers", dict) if "additional_answers" in conversation else {}
            answers += [_texts(further, name) for name in further]
            if uneven := [len(texts) for texts in answers if len(texts) != len(questions)]:
                raise MalformedRecordError(f"has {len(questions)} questions, but {uneven[0]} answers")
            history: list[str] = []
            for turn, question in enumerate(questions):
                references = tuple(texts[turn] for texts in answers)
                yield Example(path, f"{where}, turn {turn + 1}", (passage, *history, question), references)
                history += [question, answers[0][turn]]


def _texts(record: Any, key: str) -> list[str]:
    """The texts of a list of turns, whose numbers must be 1, 2 and so on."""
    turns = take(record, key, list)
    for number, turn in enumerate(turns, 1):
        if take(turn, "turn_id", int) != number:
            raise MalformedRecordError(f"turn {number} of {key!r} has the turn_id {turn['turn_id']}")
    return [take(turn, "input_text", str) for turn in turns]
