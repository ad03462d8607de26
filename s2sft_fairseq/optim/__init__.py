"""Optimizers. Importing this package registers them with fairseq."""

from s2sft_fairseq import runtime

runtime.install()  # fairseq must be patched before it is used

from s2sft_fairseq.optim import fused_adamw  # noqa: E402

__all__ = ["fused_adamw"]
