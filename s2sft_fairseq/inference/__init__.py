"""From sources to hypotheses, and from a file of raw text to a file of what is generated."""

from s2sft_fairseq import plugin as plugin  # which patches fairseq before it is used
