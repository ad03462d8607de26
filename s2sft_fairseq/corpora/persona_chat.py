"""Persona-Chat: from a speaker's persona and the conversation so far to what the speaker says next.

Raw files: ``train_self_original.txt``, ``valid_self_original.txt`` and ``test_self_original.txt`` (Zhang et al., 2018;
ParlAI's task ``personachat``). Lines are numbered within a conversation. The first ones are the persona, the others a
turn of the partner, the answer, and candidates of it, separated by tabs::

    1 your persona: i like to remodel homes.
    2 hello , how are you ?<TAB>i am fine . you ?<TAB><TAB>candidate|candidate|i am fine . you ?

Fields of a source: the persona, then every turn so far.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from s2sft_fairseq.corpora.example import Example
from s2sft_fairseq.corpora.malformed import Malformed, MalformedRecordError
from s2sft_fairseq.corpora.raw_files import numbered_lines, require

PERSONA = "your persona:"
_NUMBERED = re.compile(r"(\d+) (.*)")


def read_persona_chat(folder: Path, malformed: Malformed) -> dict[str, Iterator[Example]]:
    """The three splits.

    Raises:
        UserError: if a file is missing.
    """
    splits = ("train", "valid", "test")
    paths = require(folder, *(f"{split}_self_original.txt" for split in splits))
    return {split: read_conversations(path, malformed) for split, path in zip(splits, paths, strict=True)}


def read_conversations(path: Path, malformed: Malformed) -> Iterator[Example]:
    """Yield an example for each answer. The rest of a conversation with a malformed line is left out."""
    persona: list[str] = []
    turns: list[str] = []
    expected = None  # the number of the next line; None within a conversation that is left out
    for number, line in numbered_lines(path, malformed):
        with malformed.record(path, number):
            numbered = _NUMBERED.fullmatch(line or "")
            if numbered and numbered[1] == "1":
                persona, turns, expected = [], [], 1
            if expected is None and number > 1:
                continue
            first, expected = expected, None
            if numbered is None or first is None or int(numbered[1]) != first:
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
