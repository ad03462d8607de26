"""Blocks of documents, compared with documents cut by hand and in the plainest way; batches of texts with labels."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from fairseq.data import ListDataset
from tiny import CLS, SEP, tiny_form

from s2sft_fairseq.data.text_datasets import LabelledDataset, TokenBlocks
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.sequence_form import SourceFields

EOS = 3


def data(*lines):
    """Return lines of ids, each with its eos."""
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
    """No token is lost or repeated, no block crosses documents, and a document's blocks are nearly equally long."""
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
    """The divider is at the line that begins nearest to the middle, or in the middle."""
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


TEXTS = [[7, 8, SEP, 9, SEP], [10, SEP], [11] * 30 + [SEP, 12, SEP]]
FORM = tiny_form(fields=SourceFields((0, 1), False, ("right", "right"), (0,)), max_source=8)


def dataset(labels):
    texts = [torch.tensor(text) for text in TEXTS]
    return LabelledDataset(ListDataset(texts, np.array([len(text) for text in texts])), labels, FORM, name="some")


def test_a_batch(caplog):
    data = dataset(np.array([[1, 2], [3, 4], [5, 6]]))
    assert "some: 1 of 3 texts are cut to 8 positions (--max-source-positions)" in caplog.text
    assert data.sizes.tolist() == [6, 3, 8]
    batch = data.collater([data[2], data[0]])
    assert batch["id"].tolist() == [2, 0]
    assert batch["labels"].tolist() == [[5, 6], [1, 2]]
    assert (batch["nsentences"], batch["ntokens"]) == (2, 14)
    net_input = batch["net_input"]
    assert net_input["lengths"] == ((8,), (6,))
    assert net_input["tokens"].tolist() == [CLS, 11, 11, 11, 11, SEP, 12, SEP, CLS, 7, 8, SEP, 9, SEP]
    assert net_input["segments"].tolist() == [0] * 6 + [1] * 2 + [0] * 4 + [1] * 2
    assert net_input["positions"].tolist() == [*range(8), *range(6)]
    assert not net_input["steps"].any() and not net_input["groups"].any()
    assert data.size(1) == 3
    assert data.collater([]) == {}


def test_texts_alone():
    data = dataset(None)
    assert data.collater([data[1]])["labels"] is None


def test_no_text_is_left_out_for_its_length():
    """Fairseq wants no text longer than --max-tokens; the batches report such a text by name."""
    data = dataset(None)
    kept, ignored = data.filter_indices_by_size(np.arange(3), 4)
    assert len(kept) == 3 and ignored == []
    with pytest.raises(UserError, match=r"--max-tokens .*must be at least \d+, .* of some \(number 3 of 3\), but is 4"):
        data.batch_by_size(kept, max_tokens=4)
