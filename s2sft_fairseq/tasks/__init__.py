"""Tasks, registered with fairseq by being imported."""

from s2sft_fairseq import plugin as plugin  # which patches fairseq before it is used
from s2sft_fairseq.tasks import (
    deltalm_pretraining,
    deltalm_seq2seq,
    ernie_gen_pretraining,
    unilm_classification,
    unilm_pretraining,
    unilm_question_answering,
    unilm_seq2seq,
)

__all__ = [
    "deltalm_pretraining",
    "deltalm_seq2seq",
    "ernie_gen_pretraining",
    "unilm_classification",
    "unilm_pretraining",
    "unilm_question_answering",
    "unilm_seq2seq",
]
