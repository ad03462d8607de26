"""Groups of sentences of similar lengths."""

import numpy as np
import pytest
import torch

from s2sft_fairseq.modules.similar_lengths import MOST_PADDING, similar_lengths


@pytest.mark.parametrize("seed", range(5))
def test_every_sentence_once_with_little_padding(seed):
    lengths = torch.from_numpy(np.random.default_rng(seed).integers(1, 300, 50))
    groups = list(similar_lengths(lengths))
    assert sorted(torch.cat([sentences for sentences, _ in groups]).tolist()) == list(range(50))
    for (sentences, longest), following in zip(groups, [*groups[1:], None], strict=True):
        assert lengths[sentences].max() == longest
        assert lengths[sentences].min() >= (1 - MOST_PADDING) * longest
        # The next one would not have fitted.
        assert following is None or following[1] < (1 - MOST_PADDING) * longest


def test_sentences_of_one_length_stay_together():
    ((sentences, longest),) = similar_lengths(torch.tensor([7, 7, 7]))
    assert (sorted(sentences.tolist()), longest) == ([0, 1, 2], 7)
