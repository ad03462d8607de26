"""Dialogues, a knowledge and turns: their segments and how they are cut, by hand and compared with plain Python.

A letter is a token, ``/`` is ``[SEP]`` and ``^`` is ``[CLS]``. There are segments of three roles and four turns, in
hexadecimal: turn 1 of role 1, the last before the response, is 4; turn 2 of role 0 is 6; turn 0 of role 2, the
knowledge, is 2.
"""

import numpy as np
import pytest
from tiny import CLS, SEP, pack_example, tiny_form

from s2sft_fairseq.objectives.finetuning import NO_CORRUPTION
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.sequence_form import SourceFields

SPECIAL = {"^": CLS, "/": SEP}
KEEP_KNOWLEDGE, AS_ONE_RUN = ("right", "left"), ("left",)


def ids(text):
    return np.array([SPECIAL.get(letter) or ord(letter) for letter in text], dtype=np.int64)


def as_text(tokens):
    letters = {number: letter for letter, number in SPECIAL.items()}
    return "".join(letters.get(token) or chr(token) for token in tokens.tolist())


def dialogue_form(method="pseudo_masked", max_source=40, truncation=KEEP_KNOWLEDGE, limits=(0,)):
    fields = SourceFields(truncation=truncation, limits=limits, dialogue=(3, 4))
    return tiny_form(method, max_source=max_source, fields=fields, target_segment=0)


def laid_out(text, form):
    source = form.source(ids(text))
    return as_text(source), "".join(f"{segment:x}" for segment in form.source_segments(source).tolist())


@pytest.mark.parametrize(
    ("text", "expected", "segments"),
    [
        ("ab/cd/ef", "^ab/cd/ef/", "2222666444"),
        ("ab/cd", "^ab/cd/", "2222444"),
        # Turns beyond the fourth row of the table share it; roles still alternate.
        ("k/a/b/c/d/e", "^k/a/b/c/d/e/", "222aa99aa6644"),
        # Without a knowledge, or with nothing else.
        ("/cd/ef", "^/cd/ef/", "22666444"),
        ("ab", "^ab/", "2222"),
        ("", "^/", "22"),
    ],
)
def test_roles_and_turns(text, expected, segments):
    assert laid_out(text, dialogue_form()) == (expected, segments)


def test_of_a_causal_model():
    """The last turn's [SEP] is the first token of the target."""
    assert laid_out("ab/cd/ef", dialogue_form("causal")) == ("^ab/cd/ef", "222266644")


@pytest.mark.parametrize(
    ("max_source", "expected"),
    [
        (16, "^abcd/efg/hi/jk/"),
        # The oldest turn is removed first ...
        (15, "^abcd/fg/hi/jk/"),
        # ... with its [SEP]: one position stays free.
        (13, "^abcd/hi/jk/"),
        (12, "^abcd/hi/jk/"),
        (10, "^abcd/jk/"),
        (9, "^abcd/jk/"),
        # Then the end of the knowledge, and finally the last turn.
        (8, "^abc/jk/"),
        (5, "^/jk/"),
        (4, "^/k/"),
        (3, "^//"),
    ],
)
def test_the_knowledge_stays(max_source, expected):
    assert laid_out("abcd/efg/hi/jk", dialogue_form(max_source=max_source))[0] == expected


@pytest.mark.parametrize(
    ("max_source", "expected"),
    [
        (15, "^bcd/efg/hi/jk/"),
        (12, "^/efg/hi/jk/"),
        (11, "^/fg/hi/jk/"),
        (9, "^/hi/jk/"),
        (5, "^/jk/"),
        (4, "^/k/"),
        (3, "^//"),
    ],
)
def test_as_one_run_the_knowledge_goes_first(max_source, expected):
    """Its [SEP] stays, so that the oldest turn does not become the knowledge."""
    form = dialogue_form(max_source=max_source, truncation=AS_ONE_RUN)
    assert laid_out("abcd/efg/hi/jk", form)[0] == expected


def test_limits_and_sides():
    assert laid_out("abcd/efg/hi", dialogue_form(limits=(3, 0)))[0] == "^ab/efg/hi/"
    assert laid_out("abcd/efg/hi", dialogue_form(limits=(3, 3), truncation=("left", "left")))[0] == "^cd/fg/hi/"
    assert laid_out("abcd/ef", dialogue_form(max_source=6, truncation=("left", "left")))[0] == "^d/ef/"
    assert laid_out("abcdef", dialogue_form(max_source=5))[0] == "^abc/"
    assert laid_out("abcdef", dialogue_form(max_source=5, truncation=AS_ONE_RUN))[0] == "^def/"


def naive_cut(text, room, truncation):
    """Cut a dialogue one letter at a time."""
    if "/" not in text:
        return text[len(text) - room :] if truncation == ("left",) and len(text) > room else text[:room]
    knowledge, *turns = text.split("/")

    def too_long():
        return len("/".join([knowledge, *turns])) > room

    def lose_turns():
        while too_long() and len(turns) > 1:
            if len(turns[0]) > 1:
                turns[0] = turns[0][1:]
            else:
                turns.pop(0)

    if len(truncation) > 1:
        lose_turns()
    while too_long() and knowledge:
        knowledge = knowledge[1:] if truncation[0] == "left" else knowledge[:-1]
    lose_turns()
    while too_long() and turns[0]:
        turns[0] = turns[0][1:]
    return "/".join([knowledge, *turns])


@pytest.mark.parametrize("seed", range(200))
def test_rules(seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, rng.choice([2, 5, 12]), size=rng.integers(1, 7))
    text = "/".join("".join(map(chr, rng.integers(97, 123, size=length))) for length in lengths)
    truncation = (KEEP_KNOWLEDGE, ("left", "left"), AS_ONE_RUN)[seed % 3]
    form = dialogue_form(("causal", "infilling")[seed % 2], int(rng.integers(3, 40)), truncation)
    source, segments = laid_out(text, form)
    room = form.max_source - form.source_specials
    assert source == "^" + naive_cut(text, room, truncation) + "/" * form.has_placeholders
    fields = source.split("/")[:-1] if form.has_placeholders else source.split("/")
    expected = ""
    for number, field in enumerate(fields):
        ago = len(fields) - number
        role, turn = (2, 0) if number == 0 else (ago % 2, min(ago, 3))
        expected += f"{turn * 3 + role:x}" * (len(field) + 1)
    assert segments == expected[: len(source)]
    assert len(source) <= form.source_length(np.array(len(text)))


@pytest.mark.parametrize("method", list(OBJECTIVES))
def test_columns_of_the_methods(method):
    form = dialogue_form(method)
    context, *rest = pack_example(method, ids("ab/x/y"), ids("m"), form, NO_CORRUPTION, np.random.default_rng(0))
    assert context.segment.tolist() == [2, 2, 2, 2, 6, 6, 4, 4][: len(context.token)]
    assert all(set(block.segment.tolist()) == {0} for block in rest)


def test_padded_rows():
    """Segments of padding have no meaning, but must be in the tables."""
    form = dialogue_form()
    rows = [form.source(ids(text)) for text in ("abc/de/f/g", "", "a//b", "abcdefg")]
    padded = np.full((len(rows), 14), form.pad)
    for row, source in zip(padded, rows, strict=True):
        row[: len(source)] = source
    together = form.source_segments(padded)
    for row, source in zip(together, rows, strict=True):
        assert row[: len(source)].tolist() == form.source_segments(source).tolist()
    assert set(together.flatten().tolist()) <= set(range(3 * 4))
