"""Optimisers, registered with fairseq by being imported."""

from s2sft_fairseq import plugin as plugin  # which patches fairseq before it is used
from s2sft_fairseq.optim import fused_adamw

__all__ = ["fused_adamw"]
