"""Batches of texts with labels."""

import numpy as np
import pytest
import torch
from fairseq.data import ListDataset
from tiny import CLS, SEP, tiny_form

from s2sft_fairseq.data.labelled_dataset import LabelledDataset
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.sequence_form import SourceFields

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
    """fairseq asks for no text that is longer than --max-tokens; the batches refuse it by name."""
    data = dataset(None)
    kept, ignored = data.filter_indices_by_size(np.arange(3), 4)
    assert len(kept) == 3 and ignored == []
    with pytest.raises(UserError, match=r"--max-tokens .*must be at least \d+, .* of some \(number 3 of 3\), but is 4"):
        data.batch_by_size(kept, max_tokens=4)
