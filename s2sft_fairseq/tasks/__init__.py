"""Tasks, registered with fairseq by being imported."""

from s2sft_fairseq.tasks import unilm_seq2seq

__all__ = ["unilm_seq2seq"]
