"""Criterions, registered with fairseq by being imported."""

from s2sft_fairseq import plugin as plugin  # which patches fairseq before it is used
from s2sft_fairseq.criterions import answer_span, classification, mask_attention

__all__ = ["answer_span", "classification", "mask_attention"]
