"""Checkpoints: safe loading, and one loader of pretrained weights per source format."""

from s2sft_fairseq import plugin as plugin  # which patches fairseq before it is used
