"""Sources of several fields, compared with tables written by hand and with the rules in plain Python.

In these tests' texts a letter is a token, ``/`` is ``[SEP]`` and ``^`` is ``[CLS]``.
"""

from itertools import pairwise

import numpy as np
import pytest
from tiny import CLS, SEP, pack_example, tiny_form

from s2sft_fairseq.objectives.finetuning import NO_CORRUPTION, Corruption
from s2sft_fairseq.objectives.sequence_form import EncoderDecoderForm, SourceFields

METHOD_NAMES = ("causal", "masked", "pseudo_masked")
SPECIAL = {"^": CLS, "/": SEP}


def ids(text):
    return np.array([SPECIAL.get(letter) or ord(letter) for letter in text], dtype=np.int64)


def as_text(tokens):
    letters = {number: letter for letter, number in SPECIAL.items()}
    return "".join(letters.get(token) or chr(token) for token in tokens.tolist())


def laid_out(text, max_source=24, method="pseudo_masked", **fields):
    """Return the laid-out source and its segments, as two texts of one length."""
    form = tiny_form(method, max_source=max_source, fields=SourceFields(**fields))
    source = form.source(ids(text))
    return as_text(source), "".join(map(str, form.source_segments(source).tolist()))


QUESTION_GENERATION = {"segments": (0, 1), "truncation": ("right", "left"), "limits": (6, 4)}


# A passage of at most 6 positions, cut on its right, and an answer of at most 4, cut on its left.
@pytest.mark.parametrize(
    ("text", "max_source", "expected", "segments"),
    [
        ("abc/xy", 24, "^abc/xy/", "00000111"),
        ("abcdefg/xy", 24, "^abcde/xy/", "0000000111"),
        ("abc/uvwxy", 24, "^abc/wxy/", "000001111"),
        ("abcdefg/uvwxy", 24, "^abcde/wxy/", "00000001111"),
        # 9 positions for the whole: 6 of the 5 + 3 tokens are kept, and the passage is the longer field.
        ("abcdefg/uvwxy", 9, "^abc/wxy/", "000001111"),
        # Both are cut to one length; the remaining position goes to the answer, which was shorter.
        ("abcdefg/uvwxy", 8, "^ab/wxy/", "00001111"),
        ("abcdefg/uvwxy", 7, "^ab/xy/", "0000111"),
        ("abcdefg/y", 7, "^abc/y/", "0000011"),
        # A field that is empty, or cut to nothing, keeps its [SEP].
        ("/xy", 24, "^/xy/", "00111"),
        ("abc/", 24, "^abc//", "000001"),
        ("abc/xy", 4, "^/y/", "0011"),
        ("abc/xy", 3, "^//", "001"),
        ("abc", 24, "^abc/", "00000"),
        ("", 24, "^/", "00"),
    ],
)
def test_passage_and_answer(text, max_source, expected, segments):
    assert laid_out(text, max_source, **QUESTION_GENERATION) == (expected, segments)


# The newest end of a dialogue is kept; the last speaker has segment 1.
@pytest.mark.parametrize(
    ("text", "max_source", "expected", "segments"),
    [
        ("ab/cd/ef", 24, "^ab/cd/ef/", "1111000111"),
        ("ab/cd/ef/gh", 24, "^ab/cd/ef/gh/", "0000111000111"),
        ("ab/cd/ef/gh", 12, "^b/cd/ef/gh/", "000111000111"),
        # Only the [SEP] of the first turn would be left, so it is removed too: one position stays free.
        ("ab/cd/ef/gh", 11, "^cd/ef/gh/", "1111000111"),
        ("ab/cd/ef/gh", 10, "^cd/ef/gh/", "1111000111"),
        ("ab/cd/ef/gh", 9, "^d/ef/gh/", "111000111"),
        ("ab/cd/ef/gh", 3, "^h/", "111"),
        # An empty turn that is kept remains a turn.
        ("ab//cd", 6, "^/cd/", "00111"),
        ("ab//cd", 5, "^/cd/", "00111"),
        ("", 24, "^/", "11"),
    ],
)
def test_dialogue(text, max_source, expected, segments):
    rules = {"segments": (0, 1), "alternate": True, "truncation": ("left",)}
    assert laid_out(text, max_source, **rules) == (expected, segments)


@pytest.mark.parametrize(
    ("text", "max_source", "expected", "segments"),
    [
        ("ab/cd/ef", 24, "^ab/cd/ef", "111100011"),
        ("ab/cd/ef", 7, "^cd/ef", "000011"),
        ("ab/cd/ef", 6, "^cd/ef", "000011"),
        ("ab/cd/ef", 5, "^d/ef", "00011"),
        ("", 24, "^", "1"),
    ],
)
def test_dialogue_of_a_causal_model(text, max_source, expected, segments):
    """The last turn's [SEP] is the first token of the target."""
    rules = {"segments": (0, 1), "alternate": True, "truncation": ("left",)}
    assert laid_out(text, max_source, "causal", **rules) == (expected, segments)


@pytest.mark.parametrize(
    ("rules", "segments"),
    [
        ({}, "0000000000"),
        ({"segments": (1,)}, "1111111111"),
        ({"segments": (2, 1)}, "2222111111"),
        ({"segments": (0, 1, 2)}, "0000111222"),
        ({"segments": (3,), "alternate": True}, "3333333333"),
        ({"segments": (1, 0), "alternate": True}, "0000111000"),
        ({"segments": (0, 1, 2, 3), "alternate": True}, "1111222333"),
    ],
)
def test_segments(rules, segments):
    assert laid_out("ab/cd/ef", **rules) == ("^ab/cd/ef/", segments)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abcd/wxyz", "^abcd/wx/"),
        # The cut is before or right after a [SEP].
        ("abcdef/xyz", "^abcdef/"),
        ("abcdefg/xyz", "^abcdefg/"),
        ("abcde/xyz", "^abcde/x/"),
        ("abcdef/xyz", "^abcdef//"),
    ],
)
def test_one_run_cut_on_the_right(text, expected):
    """The cut does not depend on the contents of the source."""
    assert laid_out(text, len(expected))[0] == expected


@pytest.mark.parametrize(("side", "expected"), [("right", "^ab/vw/rs/"), ("left", "^bc/yz/rs/")])
def test_one_side_and_a_limit_for_each_field(side, expected):
    """Each field has its own limit; apart from these, the source is cut as one run."""
    assert laid_out("abc/vwxyz/rs", limits=(3, 3), truncation=(side,))[0] == expected
    shorter = {"right": "^ab/vw/r/", "left": "^c/yz/rs/"}
    assert laid_out("abc/vwxyz/rs", 9, limits=(3, 3), truncation=(side,))[0] == shorter[side]


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_columns_of_the_methods(method):
    form = tiny_form(method, fields=SourceFields(segments=(2, 3)), target_segment=1)
    context, *rest = pack_example(method, ids("ab/xy"), ids("m"), form, NO_CORRUPTION, np.random.default_rng(0))
    assert as_text(context.token) == ("^ab/xy" if method == "causal" else "^ab/xy/")
    assert context.segment.tolist() == [2, 2, 2, 2, 3, 3, 3][: len(context.token)]
    assert context.position.tolist() == list(range(len(context.token)))
    assert all(set(block.segment) == {1} and block.position[0] == len(context.token) for block in rest)


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_segments_are_those_of_the_clean_source(method):
    """A source token that is replaced by [SEP] does not begin a field."""
    form = tiny_form(method, fields=SourceFields(segments=(2, 3)), vocab_size=SEP + 1)
    corruption = Corruption(target_mask_prob=0.0, random_prob=1.0, keep_prob=0.0, source_mask_prob=1.0)
    source = ids("ab/xyz")
    rng, drawn = np.random.default_rng(0), []
    for _ in range(5):
        context = pack_example(method, source, ids("m"), form, corruption, rng)[0]
        assert context.segment.tolist() == [2, 2, 2, 2, 3, 3, 3, 3][: len(context.token)]
        assert context.token[[0, 3]].tolist() == [CLS, SEP]
        drawn += context.token[[1, 2, 4, 5, 6]].tolist()
    assert SEP in drawn


# The rules in plain Python


def naive_cut(text, room, truncation, limits):
    """Cut the fields of a text one letter at a time."""

    def shorten(index):
        side = truncation[index] if index < len(truncation) else truncation[-1]
        fields[index] = fields[index][1:] if side == "left" else fields[index][:-1]

    fields = text.split("/")
    for index in range(len(fields)):
        limit = limits[index] if index < len(limits) else limits[-1]
        while limit and len(fields[index]) + 1 > limit:
            shorten(index)
    if len(truncation) > 1:
        whole = [len(field) for field in fields]
        while len("/".join(fields)) > room and any(fields):
            # Of equally long fields, the one that was longest before, then the last.
            shorten(max(range(len(fields)), key=lambda index: (len(fields[index]), whole[index], index)))
        return "/".join(fields)[:room]
    if truncation == ("right",):
        return "/".join(fields)[:room]
    while len("/".join(fields)) > room:
        if len(fields[0]) > 1:
            fields[0] = fields[0][1:]
        else:
            fields.pop(0)
    return "/".join(fields)


def naive_segments(source, shifted, segments, alternate):
    """Give each field a segment, then each letter that of its field."""
    fields = source.split("/")
    if not shifted:
        fields.pop()
    count = len(fields)
    if alternate:
        of_field = (segments * count)[-count:]
    else:
        of_field = [segments[min(index, len(segments) - 1)] for index in range(count)]
    with_separators = "".join(str(of_field[index]) * (len(field) + 1) for index, field in enumerate(fields))
    return with_separators[: len(source)]


@pytest.mark.parametrize("method", ["causal", "pseudo_masked"])
@pytest.mark.parametrize("seed", range(200))
def test_rules(method, seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(0, rng.choice([2, 5, 12]), size=rng.integers(1, 7))
    text = "/".join("".join(map(chr, rng.integers(97, 123, size=length))) for length in lengths)
    max_source = int(rng.integers(3, 40))
    truncation = tuple(rng.choice(["left", "right"], size=rng.choice([1, 1, 2, 3])).tolist())
    limits = tuple(rng.choice([0, 0, 2, 3, 6], size=rng.integers(1, 4)).tolist())
    segments, alternate = list(range(rng.integers(1, 4))), bool(rng.integers(2))
    rules = SourceFields(tuple(segments), alternate, truncation, limits)
    form = tiny_form(method, max_source=max_source, fields=rules)
    room = max_source - form.source_specials
    source = form.source(ids(text))
    expected = "^" + naive_cut(text, room, truncation, limits) + "/" * form.has_placeholders
    assert as_text(source) == expected
    found = form.source_segments(source)
    assert "".join(map(str, found)) == naive_segments(expected, not form.has_placeholders, segments, alternate)
    assert source.dtype == found.dtype == np.int64
    # Lengths alone give an upper bound, which is mostly exact.
    longest = form.source_length(np.array(len(text)))
    assert len(source) <= longest <= max_source
    if not any(limits):
        assert len(source) >= longest - (truncation == ("left",))


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_segments_of_padded_rows(method):
    form = tiny_form(method, fields=SourceFields(segments=(0, 1, 2), alternate=True))
    rows = [form.source(ids(text)) for text in ("abc/de/f/g", "", "a//b", "abcdefg")]
    padded = np.full((len(rows), 12), form.pad)
    for row, source in zip(padded, rows, strict=True):
        row[: len(source)] = source
    together = form.source_segments(padded)
    for row, source in zip(together, rows, strict=True):
        assert row[: len(source)].tolist() == form.source_segments(source).tolist()
    assert set(together.flatten()) <= {0, 1, 2}


def test_shorter_fields_stay_whole():
    """Only the longest field is cut, whatever the number of positions."""
    text = "abcdefgh/ij/klmno"
    kept = []
    for room in range(17, 1, -1):
        rules = SourceFields(truncation=("right", "right"))
        fields = as_text(rules.cut(ids(text), SEP, room)).split("/")
        assert len("/".join(fields)) == room
        assert len(fields) == 3
        kept.append([len(field) for field in fields])
    assert kept[:8] == [[8, 2, 5], [7, 2, 5], [6, 2, 5], [5, 2, 5], [4, 2, 5], [4, 2, 4], [3, 2, 4], [3, 2, 3]]
    assert kept[-1] == [0, 0, 0]
    assert all(sum(before) == sum(after) + 1 for before, after in pairwise(kept))


SIX = np.arange(10, 16)
NOTHING = np.array([], dtype=np.int64)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("pseudo_masked", [CLS, 10, 11, 12, 13, 14, 15, SEP]),
        ("masked", [CLS, 10, 11, 12, 13, 14, 15, SEP]),
        # The [SEP] of a causal model is the first token of its target.
        ("causal", [CLS, 10, 11, 12, 13, 14, 15]),
    ],
)
def test_source(method, expected):
    assert tiny_form(method).source(SIX).tolist() == expected


@pytest.mark.parametrize(
    ("method", "expected"), [("pseudo_masked", [CLS, 10, 11, 12, SEP]), ("causal", [CLS, 10, 11, 12, 13])]
)
def test_a_cut_source_keeps_its_special_symbols(method, expected):
    assert tiny_form(method, max_source=5).source(SIX).tolist() == expected


@pytest.mark.parametrize("method", ["causal", "masked", "pseudo_masked"])
def test_target(method):
    assert tiny_form(method).target(SIX).tolist() == [10, 11, 12, 13, 14, 15, SEP]
    assert tiny_form(method, max_target=7).target(SIX).tolist() == [10, 11, 12, 13, 14, 15, SEP]
    assert tiny_form(method, max_target=6).target(SIX).tolist() == [10, 11, 12, 13, 14, SEP]


@pytest.mark.parametrize(("method", "source"), [("pseudo_masked", [CLS, SEP]), ("causal", [CLS])])
def test_empty_texts(method, source):
    form = tiny_form(method)
    assert form.source(NOTHING).tolist() == source
    assert form.target(NOTHING).tolist() == [SEP]
    assert form.source_specials == len(source)


@pytest.mark.parametrize("method", ["causal", "pseudo_masked"])
def test_lengths_are_those_of_laid_out_texts(method):
    form = tiny_form(method, max_source=5, max_target=4)
    counts = np.arange(8)
    tokens = [np.full(count, 9) for count in counts]
    assert form.source_length(counts).tolist() == [len(form.source(ids)) for ids in tokens]
    assert form.target_length(counts).tolist() == [len(form.target(ids)) for ids in tokens]
    assert max(form.source_length(counts)) == 5
    assert max(form.target_length(counts)) == 4


@pytest.mark.parametrize("method", ["causal", "pseudo_masked"])
def test_ids_are_int64(method):
    form = tiny_form(method)
    for ids in (SIX, NOTHING):
        assert form.source(ids).dtype == form.target(ids).dtype == np.int64


PREFIX, EOS, PAD = 40, 2, 1


def test_sources_and_targets():
    form = EncoderDecoderForm((PREFIX,), EOS, PAD, max_source=5, max_target=4)
    assert form.source_specials == 2
    assert form.source(np.array([7, 8])).tolist() == [PREFIX, 7, 8, EOS]
    assert form.source(np.array([5, 6, 7, 8, 9])).tolist() == [PREFIX, 5, 6, 7, EOS]
    assert form.source(np.array([], dtype=int)).tolist() == [PREFIX, EOS]
    assert form.target(np.array([7, 8])).tolist() == [7, 8, EOS]
    assert form.target(np.array([5, 6, 7, 8])).tolist() == [5, 6, 7, EOS]


def test_nothing_before_the_source():
    form = EncoderDecoderForm((), EOS, PAD, max_source=5, max_target=4)
    source = form.source(np.array([7, 8]))
    assert source.tolist() == [7, 8, EOS] and source.dtype == np.int64


def test_the_longest_of_several_fields_is_cut():
    """The passage is shortened for the answer after it."""
    form = EncoderDecoderForm((PREFIX,), EOS, PAD, max_source=9, max_target=4)
    source = form.source(np.array([5, 5, 5, 5, 5, 5, EOS, 7, 8]))
    assert source.tolist() == [PREFIX, 5, 5, 5, 5, EOS, 7, 8, EOS]
    assert source.dtype == np.int64
