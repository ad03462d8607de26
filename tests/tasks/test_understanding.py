"""The layout of texts for models with and without segments, and models that cannot be used."""

import pytest
from omegaconf import OmegaConf
from tiny import CLS, MASK, PAD, SEP, TINY_SIZES, tiny_config, tiny_dictionary

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.unilm_config import UnilmConfig
from s2sft_fairseq.tasks.layout import make_text_form
from s2sft_fairseq.tasks.understanding import (
    UnilmClassificationConfig,
    UnilmClassificationTask,
    UnilmQuestionAnsweringConfig,
    UnilmQuestionAnsweringTask,
)

FIELDS = {"source_truncation": "right,right", "source_field_positions": "0"}


@pytest.mark.parametrize(("segments", "given", "expected"), [
    (2, None, (0, 1)), (0, None, (0, 1)), (1, None, (0,)), (4, "0,1,2", (0, 1, 2)),
])  # fmt: skip
def test_segments(segments, given, expected):
    form = make_text_form(tiny_dictionary(), tiny_config(num_segments=segments), 20, source_segments=given, **FIELDS)
    assert form.fields.segments == expected
    assert form.fields.truncation == ("right", "right")
    assert (form.cls, form.sep, form.pad, form.placeholder) == (CLS, SEP, PAD, MASK)
    assert (form.max_source, form.starts_with) == (20, None)


def test_mistakes():
    with pytest.raises(UserError) as raised:
        make_text_form(tiny_dictionary(), tiny_config(), 2, source_segments="x", **FIELDS)
    assert raised.value.problems == [
        "--max-source-positions must be at least 3 and at most --max-positions of the model (64), but is 2",
        "--source-segments must be dialogue, or numbers separated by commas, with ,... at the end if they are to take "
        "turns, but is 'x'",
    ]


@pytest.mark.parametrize(
    ("task", "config"),
    [
        (UnilmClassificationTask, UnilmClassificationConfig(data="data", classes="no,yes")),
        (UnilmQuestionAnsweringTask, UnilmQuestionAnsweringConfig(data="data")),
    ],
)
def test_a_language_model_is_refused(task, config):
    """Its first token, where the head of classification reads, sees nothing else."""
    model = OmegaConf.structured(UnilmConfig(_name="unilm", **TINY_SIZES, source_visibility="causal"))
    with pytest.raises(UserError, match=r"^--source-visibility must be both for classification.*, but .* has causal"):
        task(config, tiny_dictionary()).build_model(model)
