"""Answers in conversations: CoQA and Persona-Chat.

CoQA as a generation task: from a passage and a conversation about it to the answer to the last question. Raw files:
``coqa-train-v1.0.json`` and ``coqa-dev-v1.0.json`` (Reddy et al., 2019; https://stanfordnlp.github.io/coqa). The test
set is not published; UniLM and ERNIE-GEN report on the development set, which has three further answers to each
question. The fields of a source are the passage, all earlier questions and answers, and the question.

Persona-Chat: from a speaker's persona and the conversation so far to the speaker's next utterance. Raw files:
``train_self_original.txt``, ``valid_self_original.txt`` and ``test_self_original.txt`` (Zhang et al., 2018; ParlAI's
task ``personachat``). Lines are numbered within a conversation. The first lines are the persona; each of the others has
a turn of the partner, the answer, and candidate answers, separated by tabs::

    1 your persona: i like to remodel homes.
    2 hello , how are you ?<TAB>i am fine . you ?<TAB><TAB>candidate|candidate|i am fine . you ?

The fields of a source are the persona and every turn so far.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from s2sft_fairseq.corpora.reading import (
    Example,
    Malformed,
    MalformedRecordError,
    numbered_lines,
    read_data_list,
    require,
    take,
)
from s2sft_fairseq.data.bounded_files import whole_number


def read_coqa(folder: Path, malformed: Malformed) -> dict[str, Iterator[Example]]:
    """Return ``train`` and ``valid``.

    Raises:
        UserError: if a file is missing or is not JSON.
    """
    train, dev = require(folder, "coqa-train-v1.0.json", "coqa-dev-v1.0.json")
    return {"train": read_coqa_file(train, malformed), "valid": read_coqa_file(dev, malformed)}


def read_coqa_file(path: Path, malformed: Malformed) -> Iterator[Example]:
    """Yield an example for each question; its first reference is the answer within the conversation."""
    for number, conversation in enumerate(read_data_list(path), 1):
        where = f"conversation {number}"
        with malformed.record(path, where):
            where = f"conversation {take(conversation, 'id', str)}"
        with malformed.record(path, where):
            passage = take(conversation, "story", str)
            questions = _texts_of_turns(conversation, "questions")
            answers = [_texts_of_turns(conversation, "answers")]
            further = take(conversation, "additional_answers", dict) if "additional_answers" in conversation else {}
            answers += [_texts_of_turns(further, name) for name in further]
            if uneven := [len(texts) for texts in answers if len(texts) != len(questions)]:
                raise MalformedRecordError(f"has {len(questions)} questions, but {uneven[0]} answers")
            history: list[str] = []
            for turn, question in enumerate(questions):
                references = tuple(texts[turn] for texts in answers)
                yield Example(path, f"{where}, turn {turn + 1}", (passage, *history, question), references)
                history += [question, answers[0][turn]]


def _texts_of_turns(record: Any, key: str) -> list[str]:
    """Return the texts of a list of turns, whose numbers must be 1, 2 and so on."""
    turns = take(record, key, list)
    for number, turn in enumerate(turns, 1):
        if take(turn, "turn_id", int) != number:
            raise MalformedRecordError(f"turn {number} of {key!r} has the turn_id {turn['turn_id']}")
    return [take(turn, "input_text", str) for turn in turns]


PERSONA = "your persona:"
_NUMBERED = re.compile(r"(\d+) (.*)")


def read_persona_chat(folder: Path, malformed: Malformed) -> dict[str, Iterator[Example]]:
    """Return the three splits.

    Raises:
        UserError: if a file is missing.
    """
    splits = ("train", "valid", "test")
    paths = require(folder, *(f"{split}_self_original.txt" for split in splits))
    return {split: read_persona_chat_file(path, malformed) for split, path in zip(splits, paths, strict=True)}


def read_persona_chat_file(path: Path, malformed: Malformed) -> Iterator[Example]:
    """Yield an example for each answer. After a malformed line the rest of the conversation is skipped."""
    persona: list[str] = []
    turns: list[str] = []
    expected = None  # the number of the next line; None while the rest of a conversation is skipped
    for number, line in numbered_lines(path, malformed):
        with malformed.record(path, number):
            numbered = _NUMBERED.fullmatch(line or "")
            if numbered and numbered[1] == "1":
                persona, turns, expected = [], [], 1
            if expected is None and number > 1:
                continue
            first, expected = expected, None
            if numbered is None or first is None or whole_number(numbered[1]) != first:
                raise MalformedRecordError(f"must be the numbered line {first or 1}, but is {line or ''!r:.60}")
            if numbered[2].startswith(PERSONA):
                if turns:
                    raise MalformedRecordError("has a persona after the first turn")
                persona.append(numbered[2].removeprefix(PERSONA))
            else:
                columns = numbered[2].split("\t")
                if len(columns) < 2:
                    raise MalformedRecordError("must be a turn and the answer, separated by a tab, but has no tab")
                turns.append(columns[0])
                yield Example(path, number, (" ".join(persona), *turns), (columns[1],))
                turns.append(columns[1])
            expected = first + 1
