"""Tasks, registered with fairseq by being imported."""

from s2sft_fairseq.tasks import ernie_gen_pretraining, unilm_pretraining, unilm_seq2seq

__all__ = ["ernie_gen_pretraining", "unilm_pretraining", "unilm_seq2seq"]
