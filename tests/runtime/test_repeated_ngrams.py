"""fairseq's n-gram blocking without its CUDA extension."""

import torch
from fairseq.ngram_repeat_block import NGramRepeatBlock

PAD = 1


def test_forbids_what_completes_a_repeated_ngram():
    tokens = torch.full((2, 12), PAD)
    tokens[0, :6] = torch.tensor([2, 5, 6, 7, 5, 6])  # 5 6 was followed by 7
    tokens[1, :6] = torch.tensor([2, 5, 6, 7, 6, 5])
    scores = NGramRepeatBlock(3)(tokens, torch.zeros(2, 9), bsz=1, beam_size=2, step=5)
    assert scores.isinf().nonzero().tolist() == [[0, 7]]


def test_forbids_nothing_while_there_is_no_ngram():
    tokens = torch.tensor([[2, PAD, PAD, PAD]])
    assert not NGramRepeatBlock(3)(tokens, torch.zeros(1, 9), bsz=1, beam_size=1, step=0).isinf().any()
