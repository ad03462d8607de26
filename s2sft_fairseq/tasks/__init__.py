"""Tasks, registered with fairseq by being imported."""

from s2sft_fairseq import plugin as plugin  # which patches fairseq before it is used
from s2sft_fairseq.tasks import (
    deltalm_pretraining,
    deltalm_seq2seq,
    encoder_pretraining,
    understanding,
    unilm_seq2seq,
)

__all__ = [
    "deltalm_pretraining",
    "deltalm_seq2seq",
    "encoder_pretraining",
    "understanding",
    "unilm_seq2seq",
]
