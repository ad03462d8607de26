"""The layout that a fine-tuned checkpoint stores, and layouts that do not fit."""

from types import SimpleNamespace

import pytest
from tiny import CLS, MASK, PAD, SEP, VOCAB_SIZE, tiny_config, tiny_dictionary

from s2sft_fairseq.data.dictionary import BERT_SYMBOLS, PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.sequence_form import SequenceForm, SourceFields
from s2sft_fairseq.tasks.layout import DEFAULTS, make_form, parse_source_fields, resolve_layout


def options(**given):
    return SimpleNamespace(**{name: given.get(name) for name in DEFAULTS})


def layout(**changes):
    return {**DEFAULTS, "max_source_positions": 40, "max_target_positions": 24, **changes}


def test_defaults_then_checkpoint_then_options(caplog):
    assert resolve_layout(options(), None, {}, from_checkpoint=False) == DEFAULTS
    saved = layout(finetune_method="causal", placeholder="w9")
    assert resolve_layout(options(), saved, {}, from_checkpoint=True) == saved
    assert not caplog.records
    given = resolve_layout(options(max_target_positions=30, placeholder="w9"), saved, {}, from_checkpoint=True)
    assert given == {**saved, "max_target_positions": 30}
    assert [record.getMessage() for record in caplog.records] == [
        "--max-target-positions 30 overrides what the checkpoint was fine-tuned with, 24"
    ]


def test_infilling_leaves_a_position_for_its_start_symbol():
    resolved = resolve_layout(options(finetune_method="infilling"), None, {}, from_checkpoint=False)
    assert resolved == {**DEFAULTS, "finetune_method": "infilling", "max_source_positions": 463}
    make_form(resolved, tiny_dictionary(), tiny_config(max_positions=512))
    given = options(finetune_method="infilling", max_source_positions=464)
    assert resolve_layout(given, None, {}, from_checkpoint=False)["max_source_positions"] == 464


def test_the_pretrained_encoder_comes_between_checkpoint_and_defaults(caplog):
    suggested = {"source_segments": "4", "target_segment": 5}
    assert resolve_layout(options(), None, suggested, from_checkpoint=False) == {**DEFAULTS, **suggested}
    given = resolve_layout(options(target_segment=3), None, suggested, from_checkpoint=False)
    assert given == {**DEFAULTS, "source_segments": "4", "target_segment": 3}
    saved = layout(source_segments="0,1", target_segment=2)
    assert resolve_layout(options(), saved, suggested, from_checkpoint=False) == saved
    assert not caplog.records


def test_a_checkpoint_without_its_layout():
    with pytest.raises(UserError) as raised:
        resolve_layout(options(max_target_positions=30), None, {}, from_checkpoint=True)
    assert str(raised.value) == (
        "the checkpoint does not say how it was fine-tuned (it has no task state): give --finetune-method "
        "(blocks, causal, infilling, masked, pseudo_masked) and what else its training was given"
    )
    given = resolve_layout(options(finetune_method="masked"), None, {}, from_checkpoint=True)
    assert given == {**DEFAULTS, "finetune_method": "masked"}


def test_a_checkpoint_of_an_unknown_method():
    with pytest.raises(
        UserError, match=r"the method 'orders', but .* blocks, causal, infilling, masked, pseudo_masked"
    ):
        resolve_layout(options(), {"finetune_method": "orders"}, {}, from_checkpoint=True)


@pytest.mark.parametrize("method", list(OBJECTIVES))
def test_form(method):
    form = make_form(layout(finetune_method=method, target_segment=0), tiny_dictionary(), tiny_config(max_positions=65))
    assert form == SequenceForm(
        cls=CLS,
        sep=SEP,
        pad=PAD,
        placeholder=MASK,
        vocab_size=VOCAB_SIZE,
        starts_with={"causal": "sep", "infilling": "cls"}.get(method),
        fields=SourceFields(),
        target_segment=0,
        placeholder_segment=0,
        max_source=40,
        max_target=24,
    )


def test_a_placeholder_of_its_own():
    assert make_form(layout(placeholder="w9"), tiny_dictionary(), tiny_config()).placeholder == 9


def test_segments_do_not_matter_to_a_model_without_them():
    form = make_form(layout(source_segments="8,9", target_segment=7), tiny_dictionary(), tiny_config(num_segments=0))
    assert form.fields.segments == (8, 9)
    assert form.target_segment == 7


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ({"source_segments": "0,1"}, SourceFields(segments=(0, 1))),
        ({"source_segments": "1,0,..."}, SourceFields(segments=(1, 0), alternate=True)),
        ({"source_truncation": "left"}, SourceFields(truncation=("left",))),
        ({"source_truncation": "left,right"}, SourceFields(truncation=("left", "right"))),
        ({"source_field_positions": "0,350,2"}, SourceFields(limits=(0, 350, 2))),
    ],
)
def test_fields(options, fields):
    assert parse_source_fields(layout(**options), num_segments=2) == fields


@pytest.mark.parametrize("text", ["", "0,", "a", "0.5", "...", "0...", "0,...,1", ",..."])
def test_invalid_segments(text):
    with pytest.raises(UserError) as raised:
        parse_source_fields(layout(source_segments=text), num_segments=2)
    assert raised.value.problems == [
        "--source-segments must be dialogue, or numbers separated by commas, with ,... at the end if they are to take "
        f"turns, but is {text!r}"
    ]


@pytest.mark.parametrize("text", ["", "middle", "left,", "right,Left"])
def test_invalid_sides(text):
    with pytest.raises(UserError) as raised:
        parse_source_fields(layout(source_truncation=text), num_segments=2)
    assert raised.value.problems == [
        f"--source-truncation must be left or right, or several of them separated by commas, but is {text!r}"
    ]


@pytest.mark.parametrize("text", ["", "350,", "350,1", "-2", "many"])
def test_limits_that_leave_no_room(text):
    with pytest.raises(UserError) as raised:
        parse_source_fields(layout(source_field_positions=text), num_segments=2)
    assert raised.value.problems == [
        "--source-field-positions must be numbers separated by commas, each 0 (no limit) or at least 2, "
        f"but is {text!r}"
    ]


ROLES = {"num_segments": 0, "num_roles": 3, "num_turns": 16}


def test_a_dialogue():
    """The response is turn 0 of role 0, whatever segments the encoder suggests."""
    suggested = {"source_segments": "4", "target_segment": 5}
    settled = resolve_layout(options(source_segments="dialogue"), None, suggested, from_checkpoint=False)
    expected = {**DEFAULTS, "source_segments": "dialogue", "source_truncation": "right,left", "target_segment": 0}
    assert settled == expected
    form = make_form(settled, tiny_dictionary(), tiny_config(max_positions=512, **ROLES))
    assert form.fields == SourceFields(truncation=("right", "left"), dialogue=(3, 16))
    assert (form.target_segment, form.placeholder_segment) == (0, 0)
    assert resolve_layout(options(), settled, suggested, from_checkpoint=True) == settled
    given = options(source_segments="dialogue", source_truncation="left", target_segment=3)
    settled = resolve_layout(given, None, suggested, from_checkpoint=False)
    assert settled == {**expected, "source_truncation": "left", "target_segment": 3}


def test_dialogues_that_do_not_fit():
    impossible = layout(source_segments="dialogue", source_truncation="right", target_segment=2)
    with pytest.raises(UserError) as raised:
        make_form(impossible, tiny_dictionary(), tiny_config())
    assert raised.value.problems == [
        "--source-segments dialogue needs a model with --num-roles of at least 3 and --num-turns of at least 2, "
        "but it has 0 and 0",
        "--source-truncation must be left, or with a side of the knowledge right,left or left,left, with "
        "--source-segments dialogue, but is 'right'",
        "--target-segment must be at least 0 and below --num-segments of the model (2), but is 2",
    ]
    with pytest.raises(UserError) as raised:
        make_form(layout(source_segments="0,48", target_segment=48), tiny_dictionary(), tiny_config(**ROLES))
    assert raised.value.problems == [
        "--source-segments must be at least 0 and below --num-roles times --num-turns of the model (48), but is 0,48",
        "--target-segment must be at least 0 and below --num-roles times --num-turns of the model (48), but is 48",
    ]


def test_all_problems_are_reported_at_once():
    impossible = layout(
        placeholder="[M]",
        max_source_positions=2,
        max_target_positions=1,
        source_segments="0,2",
        source_truncation="up",
        source_field_positions="1",
        target_segment=2,
    )
    with pytest.raises(UserError) as raised:
        make_form(impossible, tiny_dictionary(), tiny_config(max_positions=2))
    assert raised.value.problems == [
        "--placeholder must be a symbol of the dictionary, but '[M]' is not",
        "--max-source-positions must be at least 3, but is 2",
        "--max-target-positions must be at least 2, but is 1",
        "--max-source-positions (2) and --max-target-positions (1) must add up to --max-positions of the model (2) "
        "at most, but add up to 3 (s2sft convert --max-positions gives an encoder more)",
        "--source-segments must be at least 0 and below --num-segments of the model (2), but is 0,2",
        "--source-truncation must be left or right, or several of them separated by commas, but is 'up'",
        "--source-field-positions must be numbers separated by commas, each 0 (no limit) or at least 2, but is '1'",
        "--target-segment must be at least 0 and below --num-segments of the model (2), but is 2",
    ]


def with_attn():
    """The tiny dictionary, with ERNIE-GEN's placeholder as its last symbol."""
    dictionary = tiny_dictionary()
    symbols = [*dictionary.symbols[:-1], "[ATTN]"]
    return PretrainedDictionary([(symbol, 1) for symbol in symbols], BERT_SYMBOLS)


def test_the_placeholder_of_infilling():
    """[ATTN] if the dictionary has it and no other is given; only for infilling."""

    def placeholder(method, dictionary, **given):
        return make_form(layout(finetune_method=method, **given), dictionary, tiny_config(max_positions=65)).placeholder

    assert placeholder("infilling", tiny_dictionary()) == MASK
    assert placeholder("infilling", with_attn()) == VOCAB_SIZE - 1
    assert placeholder("infilling", with_attn(), placeholder="[MASK]") == MASK
    assert placeholder("pseudo_masked", with_attn()) == MASK


def test_segments_of_placeholders():
    form = make_form(layout(target_segment=0, placeholder_segment=1), tiny_dictionary(), tiny_config())
    assert (form.target_segment, form.placeholder_segment) == (0, 1)
    with pytest.raises(UserError) as raised:
        make_form(layout(placeholder_segment=2), tiny_dictionary(), tiny_config())
    assert str(raised.value) == (
        "--placeholder-segment must be at least 0 and below --num-segments of the model (2), but is 2"
    )


def test_the_start_of_the_target_takes_a_position():
    with pytest.raises(UserError) as raised:
        make_form(layout(finetune_method="infilling"), tiny_dictionary(), tiny_config(max_positions=64))
    assert str(raised.value) == (
        "--max-source-positions (40) and --max-target-positions (24), with one for the start of the target, must add "
        "up to --max-positions of the model (64) at most, but add up to 65 (s2sft convert --max-positions gives an "
        "encoder more)"
    )
