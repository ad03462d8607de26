"""Criterions; importing this package registers them with fairseq."""

from s2sft_fairseq import runtime

runtime.install()  # fairseq must be patched before it is used

from s2sft_fairseq.criterions import mask_attention, understanding  # noqa: E402

__all__ = ["mask_attention", "understanding"]
