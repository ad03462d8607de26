"""Sections and batches of the packed format."""

import numpy as np
import pytest
from dense_reference import visibility_matrix
from tiny import tiny_form, words

from s2sft_fairseq.objectives.finetuning import NO_CORRUPTION
from s2sft_fairseq.objectives.objective import CORRUPTIONS, OBJECTIVES
from s2sft_fairseq.objectives.packing import Section, collate, first_step
from s2sft_fairseq.objectives.ragged import Draws, Ragged


def section(*tokens, **columns):
    settings = {"first_position": 0, "segment": 0, "label": 0, **columns}
    return Section.of(Ragged.of([np.array(tokens, dtype=np.int64)]), **settings)


def test_single_numbers_hold_for_every_token():
    made = section(7, 8, 9, first_position=4, segment=1, label=2, step=np.array([3, 4, 5]))
    assert made.token.tolist() == [7, 8, 9]
    assert made.position.tolist() == [4, 5, 6]
    assert made.segment.tolist() == [1, 1, 1]
    assert made.step.tolist() == [3, 4, 5]
    assert made.group.tolist() == [0, 0, 0]
    assert made.label.tolist() == [2, 2, 2]
    assert made.lengths.tolist() == [3]
    assert all(column.dtype == np.int64 for column in made)


def test_positions_of_each_example_count_on_from_its_own():
    tokens = Ragged.of([np.array([7, 8]), np.array([9]), np.array([10, 11, 12])])
    made = Section.of(tokens, first_position=np.array([3, 0, 5]), segment=0, label=0)
    assert made.position.tolist() == [3, 4, 0, 5, 6, 7]
    assert made.lengths.tolist() == [2, 1, 3]


def test_examples_follow_each_other():
    long_first = (section(11, 12, 13, label=1), section(21, first_position=3, segment=1, step=1, group=1, label=31))
    long_second = (section(14, label=1), section(24, 25, first_position=1, segment=1, step=2, group=3, label=34))
    batch = collate([long_first, long_second])
    assert batch.lengths == ((3, 1), (1, 2))
    assert batch.token.tolist() == [11, 12, 13, 21, 14, 24, 25]
    assert batch.position.tolist() == [0, 1, 2, 3, 0, 1, 2]
    assert batch.segment.tolist() == [0, 0, 0, 1, 0, 1, 1]
    assert batch.step.tolist() == [0, 0, 0, 1, 0, 2, 2]
    assert batch.group.tolist() == [0, 0, 0, 1, 0, 3, 3]
    assert batch.label.tolist() == [1, 1, 1, 31, 1, 34, 34]
    assert batch.token.dtype == np.int64
    assert all(type(length) is int for lengths in batch.lengths for length in lengths)


def test_one_by_one_or_at_once():
    """Examples that were packed together are joined with others as if each had been packed alone."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 5, (6, 3))
    examples = [
        tuple(section(*rng.integers(0, 99, length), first_position=int(i), group=i) for i, length in enumerate(each))
        for each in lengths
    ]
    together = [
        tuple(Section(*map(np.concatenate, zip(*sections, strict=True))) for sections in zip(*some, strict=True))
        for some in (examples[:1], examples[1:4], examples[4:])
    ]
    one_by_one, at_once = collate(examples), collate(together)
    assert one_by_one.lengths == at_once.lengths == tuple(map(tuple, lengths.tolist()))
    expected = [token for example in examples for each in example for token in each.token]
    assert one_by_one.token.tolist() == expected
    for name in ("token", "position", "segment", "step", "group", "label"):
        np.testing.assert_array_equal(getattr(one_by_one, name), getattr(at_once, name))


def test_examples_need_the_same_number_of_sections():
    with pytest.raises(ValueError, match=r"one number of sections, found \[1, 2\]"):
        collate([(section(1),), (section(1), section(2))])


PAIRS = ((6, 5), (11, 2), (1, 8), (1, 1))
"""Lengths of sources and targets."""


def of_objective(pack, form, corruption):
    """Return a batch of all pairs, packed at once."""
    rng = np.random.default_rng(0)
    pairs = [(form.source(words(rng, source)), form.target(words(rng, target))) for source, target in PAIRS]
    sources, targets = (Ragged.of(rows) for rows in zip(*pairs, strict=True))
    return pack(sources, targets, form, corruption, Draws(1, 1, np.arange(len(PAIRS))))


def in_pairs(rows):
    """Return the starts of spans of two tokens."""
    return rows.place - rows.place % 2


@pytest.mark.parametrize("preset", CORRUPTIONS)
@pytest.mark.parametrize("method", [name for name, objective in OBJECTIVES.items() if objective.cut is None])
def test_objectives_are_in_order(method, preset):
    """Examples for training, and the pass that gives targets their probabilities; also the context alone."""
    form, objective = tiny_form(method), OBJECTIVES[method]
    packed = of_objective(objective.pack, form, objective.corruption[preset])
    # Infilling predicts the first token after the [CLS] that begins the target's content, which has step 1.
    assert first_step(collate([packed])) == (2 if method == "infilling" else 1)
    assert first_step(collate([packed[:1]])) == 1
    assert first_step(collate([of_objective(objective.decoded_as, form, NO_CORRUPTION)])) is not None


@pytest.mark.parametrize("method", [name for name, objective in OBJECTIVES.items() if objective.takes_spans])
def test_spans_are_not_in_order(method):
    objective = OBJECTIVES[method].with_spans(in_pairs)
    assert first_step(collate([of_objective(objective.pack, tiny_form(method), NO_CORRUPTION)])) is None


def as_attended(lengths, first):
    """Return who sees whom (L, L) by causal attention, for the lengths of the three sections of an example."""
    context, content, _ = lengths
    seen = np.zeros((sum(lengths), sum(lengths)), dtype=bool)
    for query in range(sum(lengths)):
        number = query - context  # in the content, then in the placeholders
        if query < context:
            seen[query, :context] = True
        elif number < content:
            seen[query, : query + 1] = True
        else:
            seen[query, : context + first - 1 + number - content] = seen[query, query] = True
    return seen


# The sections of an example: their lengths, and what is added to the steps of content and of placeholders.
LAYOUTS = {
    "all sections": (3, 4, 4, 0, 0),
    "one content more": (3, 5, 4, 0, 0),
    "shifted placeholders": (3, 5, 4, 0, 1),
    "one placeholder": (3, 5, 1, 0, 4),
    "no placeholders": (3, 4, 0, 0, 0),
    "no content": (3, 0, 0, 0, 0),
}


def laid_out(lengths, content_later=0, placeholders_later=0):
    context, content, placeholders = lengths
    numbers = np.arange(placeholders)
    return (
        section(*[5] * context),
        section(*[5] * content, first_position=context, step=np.arange(content) + 1 + content_later),
        section(
            *[5] * placeholders,
            first_position=context + placeholders_later,
            step=numbers + 1 + placeholders_later,
            group=numbers + 3,
        ),
    )


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_order_is_causal_attention(layout):
    """The rule, written out, gives what `first_step` promises."""
    *lengths, content_later, placeholders_later = layout
    example = laid_out(lengths, content_later, placeholders_later)
    first = first_step(collate([example]))
    np.testing.assert_array_equal(visibility_matrix(example), as_attended(lengths, first))


def changed(number, place=0, **columns):
    """Return an example in order with changed columns of one token."""
    sections = list(laid_out((3, 4, 4)))
    for name, value in columns.items():
        column = getattr(sections[number], name).copy()
        column[place] = value
        sections[number] = sections[number]._replace(**{name: column})
    return sections


@pytest.mark.parametrize(
    "example",
    [
        changed(0, step=1),
        changed(0, position=1),
        changed(0, group=1),
        changed(1, 2, step=2),
        changed(1, 2, position=9),
        changed(1, 2, group=1),
        changed(2, 2, step=5),
        changed(2, 2, position=9),
        changed(2, 2, group=0),
        changed(2, 2, group=4),
        laid_out((0, 4, 4)),
        laid_out((3, 2, 4)),
        laid_out((3, 4, 4), content_later=1),
        laid_out((3, 4, 4), placeholders_later=-1),
        laid_out((3, 4, 4), placeholders_later=2),
        (*laid_out((3, 4, 4)), section(first_position=7)),
    ],
)
def test_examples_that_are_not_in_order(example):
    assert first_step(collate([example])) is None


def test_examples_must_agree():
    """All must be in order, with the same first step of placeholders."""
    one, two = laid_out((3, 5, 4)), laid_out((3, 5, 4), placeholders_later=1)
    assert [first_step(collate(batch)) for batch in ([one, one], [two, two], [one, two])] == [1, 2, None]
    assert first_step(collate([two, laid_out((3, 5, 0))])) == 2
    assert first_step(collate([one, changed(1, step=2)])) is None
