"""fairseq's own search: n-gram blocking without its CUDA extension, and models that know the beam size."""

from types import SimpleNamespace

import pytest
import torch
from fairseq.ngram_repeat_block import NGramRepeatBlock

from s2sft_fairseq.runtime import search

PAD = 1


def test_forbids_tokens_that_complete_a_repeated_ngram():
    tokens = torch.full((2, 12), PAD)
    tokens[0, :6] = torch.tensor([2, 5, 6, 7, 5, 6])  # 5 6 was followed by 7
    tokens[1, :6] = torch.tensor([2, 5, 6, 7, 6, 5])
    scores = NGramRepeatBlock(3)(tokens, torch.zeros(2, 9), bsz=1, beam_size=2, step=5)
    assert scores.isinf().nonzero().tolist() == [[0, 7]]


def test_forbids_nothing_while_there_is_no_ngram():
    tokens = torch.tensor([[2, PAD, PAD, PAD]])
    assert not NGramRepeatBlock(3)(tokens, torch.zeros(1, 9), bsz=1, beam_size=1, step=0).isinf().any()


@pytest.mark.parametrize("fails", [False, True])
def test_the_beam_is_known_during_the_search(fails):
    """However the search ends."""
    beams = []
    model = SimpleNamespace(share_source_keys=beams.append)
    generator = SimpleNamespace(
        model=SimpleNamespace(models=[model, SimpleNamespace()]), beam_size=4, match_source_len=True
    )

    def generate(self, sample):
        assert beams == [4]
        if fails:
            raise ValueError
        return sample

    if fails:
        with pytest.raises(ValueError):
            search._generate(generate, generator, 7)
    else:
        assert search._generate(generate, generator, 7) == 7
    assert beams == [4, 1]
