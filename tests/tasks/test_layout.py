"""What a fine-tuned checkpoint remembers of its layout, and layouts that do not fit."""

from types import SimpleNamespace

import pytest
from tiny import CLS, MASK, PAD, SEP, VOCAB_SIZE, tiny_config, tiny_dictionary

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.sequence_form import SequenceForm
from s2sft_fairseq.tasks.layout import DEFAULTS, make_form, resolve_layout


def options(**given):
    return SimpleNamespace(**{name: given.get(name) for name in DEFAULTS})


def layout(**changes):
    return {**DEFAULTS, "max_source_positions": 40, "max_target_positions": 24, **changes}


def test_defaults_then_checkpoint_then_options(caplog):
    assert resolve_layout(options(), None, from_checkpoint=False) == DEFAULTS
    saved = layout(finetune_method="causal", placeholder="w9")
    assert resolve_layout(options(), saved, from_checkpoint=True) == saved
    assert not caplog.records
    given = resolve_layout(options(max_target_positions=30, placeholder="w9"), saved, from_checkpoint=True)
    assert given == {**saved, "max_target_positions": 30}
    assert [record.getMessage() for record in caplog.records] == [
        "--max-target-positions 30 overrides what the checkpoint was fine-tuned with, 24"
    ]


def test_a_checkpoint_that_does_not_say_how_it_was_fine_tuned():
    with pytest.raises(UserError) as raised:
        resolve_layout(options(max_target_positions=30), None, from_checkpoint=True)
    assert str(raised.value) == (
        "the checkpoint does not say how it was fine-tuned (it has no task state): give --finetune-method "
        "(causal, masked, pseudo_masked) and what else its training was given"
    )
    given = resolve_layout(options(finetune_method="masked"), None, from_checkpoint=True)
    assert given == {**DEFAULTS, "finetune_method": "masked"}


@pytest.mark.parametrize(("method", "shifted"), [("causal", True), ("masked", False), ("pseudo_masked", False)])
def test_form(method, shifted):
    form = make_form(layout(finetune_method=method, target_segment=0), tiny_dictionary(), tiny_config())
    assert form == SequenceForm(
        cls=CLS,
        sep=SEP,
        pad=PAD,
        placeholder=MASK,
        vocab_size=VOCAB_SIZE,
        shifted=shifted,
        source_segment=0,
        target_segment=0,
        max_source=40,
        max_target=24,
    )


def test_a_placeholder_of_its_own():
    assert make_form(layout(placeholder="w9"), tiny_dictionary(), tiny_config()).placeholder == 9


def test_segments_do_not_matter_to_a_model_without_them():
    form = make_form(layout(target_segment=7), tiny_dictionary(), tiny_config(num_segments=0))
    assert form.target_segment == 7


def test_all_problems_are_reported_at_once():
    impossible = layout(
        placeholder="[M]", max_source_positions=2, max_target_positions=1, source_segment=-1, target_segment=2
    )
    with pytest.raises(UserError) as raised:
        make_form(impossible, tiny_dictionary(), tiny_config(max_positions=2))
    assert raised.value.problems == [
        "--placeholder must be a symbol of the dictionary, but '[M]' is not",
        "--max-source-positions must be at least 3, but is 2",
        "--max-target-positions must be at least 2, but is 1",
        "--max-source-positions (2) and --max-target-positions (1) must add up to --max-positions of the model (2) "
        "at most, but add up to 3",
        "--source-segment must be at least 0 and below --num-segments of the model (2), but is -1",
        "--target-segment must be at least 0 and below --num-segments of the model (2), but is 2",
    ]
