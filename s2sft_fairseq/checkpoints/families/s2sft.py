"""Models that the s2s-ft program fine-tuned, by BERT's names whatever the encoder was.

Its decoder hard-codes 1e-5 as the epsilon of all layer norms, whatever the epsilon of the training was. Decoding
reproduces its results only with this epsilon.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from s2sft_fairseq.checkpoints.conversion import Sizes
from s2sft_fairseq.checkpoints.families.bert import bert_sizes
from s2sft_fairseq.checkpoints.families.unilm import UNILM

DECODING_EPS = 1e-5


def _sizes(config: Mapping[str, Any]) -> Sizes:
    return {**bert_sizes(config), "layer_norm_eps": DECODING_EPS}


S2SFT = replace(
    UNILM,
    name="s2s-ft",
    models="what microsoft/unilm's s2s-ft fine-tuned",
    model_types=(),
    signature=r"cls\.predictions\.decoder_weight$",
    tied=("cls.predictions.decoder_weight",),
    second_bias="",
    sizes=_sizes,
    finetuned=True,
)
