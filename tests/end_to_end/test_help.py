"""``--help`` explains every option of this package."""

import re
from dataclasses import fields

import pytest

from s2sft_fairseq.criterions.mask_attention import MaskAttentionConfig
from s2sft_fairseq.models.unilm_config import UnilmConfig
from s2sft_fairseq.optim.fused_adamw import FusedAdamWConfig
from s2sft_fairseq.tasks.unilm_config import UnilmSeq2SeqConfig

CHOICES = ("--arch", "unilm", "--criterion", "mask_attention", "--optimizer", "fused_adamw")


def explanations(config):
    """Return the help text of each option that a configuration adds, without those shared with fairseq."""
    own = [field for field in fields(config) if field.name != "_name" and not str(field.default).startswith("${")]
    return {field.name: field.metadata.get("help") for field in own}


def without_spaces(text):
    """Remove white space: argparse breaks lines at spaces and hyphens."""
    return re.sub(r"\s", "", text)


@pytest.mark.parametrize(
    ("command", "configs"),
    [
        (("train", *CHOICES), (UnilmSeq2SeqConfig, UnilmConfig, MaskAttentionConfig, FusedAdamWConfig)),
        (("generate",), (UnilmSeq2SeqConfig,)),
        (("interactive",), (UnilmSeq2SeqConfig,)),
        (("validate", "--criterion", "mask_attention"), (UnilmSeq2SeqConfig, MaskAttentionConfig)),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else "",
)
def test_every_option_is_explained(call_command, command, configs):
    shown = without_spaces(call_command(*command, "--help").stdout)
    for config in configs:
        for name, text in explanations(config).items():
            option = "data" if name == "data" else f"--{name.replace('_', '-')}"
            assert option in shown
            assert text, name
            assert without_spaces(text % ()) in shown, name
