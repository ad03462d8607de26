"""What NumPy 2 breaks in fairseq's data sets works again."""

import numpy as np
import torch
from fairseq.data import Dictionary, LanguagePairDataset, ListDataset, TokenBlockDataset, data_utils


def make_pairs():
    dictionary = Dictionary()
    sentences = [torch.arange(4, 4 + length) for length in (1, 2, 3, 4, 5, 9)]
    sizes = [len(sentence) for sentence in sentences]
    return ListDataset(sentences, sizes), np.array(sizes), dictionary


def test_numpy_itself_is_left_alone():
    assert not hasattr(np, "compat")
    assert not hasattr(np, "int")


def test_buckets_of_lengths():
    assert data_utils.get_buckets(np.array([1, 2, 3, 4, 5, 9]), 3).tolist() == [2, 4, 9]


def test_num_batch_buckets():
    data, sizes, dictionary = make_pairs()
    pairs = LanguagePairDataset(data, sizes, dictionary, data, sizes, dictionary, num_buckets=3)
    assert pairs.src_sizes.tolist() == [2, 2, 4, 4, 9, 9]
    assert pairs.bucketed_num_tokens.tolist() == [2, 2, 4, 4, 9, 9]


def test_blocks_that_end_with_the_sentence():
    data, sizes, dictionary = make_pairs()
    blocks = TokenBlockDataset(data, sizes, None, dictionary.pad(), dictionary.eos(), break_mode="eos")
    assert [len(block) for block in blocks] == sizes.tolist()


def test_span_masks():
    with data_utils.numpy_seed(1):
        mask = data_utils.compute_mask_indices((4, 40), None, 0.5, 4, mask_type="static")
    assert mask.shape == (4, 40)
    assert mask.any(axis=1).all()
