"""Blocks of documents, against documents cut by hand and in the plainest way."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from fairseq.data import ListDataset

from s2sft_fairseq.data.token_blocks import TokenBlocks
from s2sft_fairseq.errors import UserError

EOS = 3


def data(*lines):
    """Lines of ids, each with its eos."""
    rows = [torch.tensor([*line, EOS]) for line in lines]
    return ListDataset(rows, np.array([len(row) for row in rows]))


def as_lists(blocks):
    return [blocks[index].tolist() for index in range(len(blocks))]


def test_by_hand():
    # Two documents of 7 and 2 tokens.
    lines = data([10, 11, 12], [13], [14, 15, 16], [], [20, 21])
    blocks = TokenBlocks(lines, 4)
    assert as_lists(blocks) == [[10, 11, 12], [13, 14, 15, 16], [20, 21]]
    assert blocks.sizes.tolist() == [3, 4, 2]
    assert (blocks.num_documents, blocks.num_short) == (2, 0)
    assert as_lists(TokenBlocks(lines, 100)) == [[10, 11, 12, 13, 14, 15, 16], [20, 21]]


def test_short_documents():
    lines = data([], [10], [], [], [11, 12, 13], [], [14, 15], [16])
    blocks = TokenBlocks(lines, 4, least=2)
    assert as_lists(blocks) == [[11, 12, 13], [14, 15, 16]]
    assert (blocks.num_documents, blocks.num_short) == (2, 1)
    with pytest.raises(UserError, match=r"^no document has 4 tokens or more, of 8 lines; an empty line ends one$"):
        TokenBlocks(lines, 8, least=4)


@pytest.mark.parametrize("most", [1, 2, 5, 16, 1000])
def test_naive(most):
    """Nothing is lost or in two blocks, none crosses documents, and those of a document are of nearly equal length."""
    rng = np.random.default_rng(most)
    documents, lines, token = [], [], 0
    for _ in range(40):
        document = []
        for _ in range(rng.integers(0, 6)):
            count = int(rng.integers(1, 12))
            line = list(range(token, token + count))
            document.append(line)
            token += count
        lines += [*document, []]
        documents.append([word for line in document for word in line])
    expected = []
    for document in filter(None, documents):
        count = math.ceil(len(document) / most)
        cuts = [len(document) * place // count for place in range(count + 1)]
        expected += [document[start:end] for start, end in pairwise(cuts)]
    blocks = TokenBlocks(data(*lines), most)
    assert as_lists(blocks) == expected
    assert sum(map(len, expected)) == token
    assert max(map(len, expected)) <= most


def test_dividers():
    """At the line that begins nearest to the middle, or in the middle."""
    lines = data([10, 11, 12, 13], [14], [15, 16, 17], [], [20, 21, 22], [], [30], [31, 32, 33, 34])
    blocks = TokenBlocks(lines, 8, divider=EOS)
    assert as_lists(blocks) == [
        [10, 11, 12, 13, EOS, 14, 15, 16, 17],
        [20, EOS, 21, 22],
        [30, EOS, 31, 32, 33, 34],
    ]
    assert blocks.sizes.tolist() == [8, 3, 5]
    halves = TokenBlocks(data([1, 2, 3, 4, 5, 6]), 3, divider=EOS)
    assert as_lists(halves) == [[1, EOS, 2, 3], [4, EOS, 5, 6]]
