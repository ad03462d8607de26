"""Tasks. Importing this package registers them with fairseq."""

from s2sft_fairseq import runtime

runtime.install()  # fairseq must be patched before it is used

from s2sft_fairseq.tasks import (  # noqa: E402
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
