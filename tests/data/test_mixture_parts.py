"""Pairs that are one text each; pairs and texts as they are batched are tested with the tasks."""

import numpy as np
import torch

from s2sft_fairseq.data.mixture_parts import ConcatenatedPairs

EOS = 2


def test_concatenated_pairs():
    """Each side is cut to half, and pairs with an empty side are left out."""

    class Lines(list):
        sizes = property(lambda self: np.array([len(line) for line in self]))

    sources = Lines(torch.tensor(line) for line in ([5, 6, EOS], [EOS], [4, 5, 6, 7, EOS]))
    targets = Lines(torch.tensor(line) for line in ([7, EOS], [8, EOS], [8, 9, 10, EOS]))
    pairs = ConcatenatedPairs(sources, targets, 5)
    assert len(pairs) == 2 and pairs.num_empty == 1 and pairs.num_cut == 1 and pairs.sizes.tolist() == [3, 4]
    assert [pairs[0].tolist(), pairs[1].tolist()] == [[5, 6, 7], [4, 5, 8, 9]]
