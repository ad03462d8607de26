"""Named sizes."""

import math
from argparse import Namespace

import pytest
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from s2sft_fairseq.models.architectures import ARCHITECTURES
from s2sft_fairseq.models.convert import parameter_shapes
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import SIZES


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_named_architectures(name):
    assert ARCH_MODEL_REGISTRY[name] is UnilmModel
    args = Namespace(**{option: None for option in SIZES if option != "encoder_attention_heads"})
    args.encoder_attention_heads = 6
    ARCH_CONFIG_REGISTRY[name](args)
    # Values of the user are kept.
    given = {option: value for option, value in vars(args).items() if value is not None}
    assert given == {**ARCHITECTURES[name], "encoder_attention_heads": 6}


@pytest.mark.parametrize(
    ("name", "vocab_size", "published"),
    [
        ("unilm_base", 30522, 110),
        ("unilm_large", 30522, 340),
        ("minilm_l12_h384", 30522, 33),
        ("unilm_roberta_base", 50265, 125),
        ("unilm_roberta_large", 50265, 355),
        ("electra_small", 30522, 14),
        ("modernbert_base", 50368, 149),
        ("modernbert_large", 50368, 395),
        ("deberta_v3_base", 128100, 184),
        ("deberta_v3_large", 128100, 435),
    ],
)
def test_architectures_are_as_large_as_published(name, vocab_size, published):
    """In millions of parameters."""
    counted = sum(math.prod(shape) for shape in parameter_shapes(ARCHITECTURES[name], vocab_size).values())
    assert counted / 1e6 == pytest.approx(published, rel=0.04)
