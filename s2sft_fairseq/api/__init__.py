"""Models in Python: what ``from s2sft_fairseq import Seq2Seq`` gives, with the engine of the commands."""
