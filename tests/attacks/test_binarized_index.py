"""An index of binarized data whose examples are outside its file, or overlap, or are of no type."""

import struct

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from tiny import tiny_dictionary

from s2sft_fairseq.data.binarized_text import load_texts
from s2sft_fairseq.errors import UserError

HEAD = b"MMIDIDX\x00\x00" + struct.pack("<Q", 1)


def index(code: int, count: int, sizes: list[int], places: list[int]) -> bytes:
    """Return an index; 8 is the code of 16 bits."""
    head = HEAD + struct.pack("<BQ", code, count)
    return head + np.array(sizes, dtype=np.int32).tobytes() + np.array(places, dtype=np.int64).tobytes()


WHOLE = (8, 2, [1, 3], [0, 2])
INDEXES = {
    "a place behind the end": (8, 2, [1, 3], [0, 2**40]),
    "a place before the beginning": (8, 2, [1, 3], [0, -2]),
    "examples that overlap": (8, 2, [3, 3], [0, 2]),
    "a negative length": (8, 2, [-1, 3], [0, -2]),
    "more than the file has": (8, 2, [1, 2**30], [0, 2]),
    "more examples than the index has": (8, 2**60, [1, 3], [0, 2]),
    "more examples than there are numbers for": (8, 2**63, [1, 3], [0, 2]),
    "no type": (99, 2, [1, 3], [0, 2]),
}


@pytest.fixture
def read(tmp_path):
    """Read two examples with another index."""
    builder = MMapIndexedDatasetBuilder(str(tmp_path / "train.bin"), dtype=np.uint16)
    for length in (1, 3):
        builder.add_item(torch.arange(length))
    builder.finalize(str(tmp_path / "train.idx"))

    def run(*parts):
        (tmp_path / "train.idx").write_bytes(index(*parts))
        return load_texts(tmp_path, "train", tiny_dictionary(), None)

    return run


def test_the_index_as_it_is(read):
    assert [example.tolist() for example in read(*WHOLE)] == [[0], [0, 1, 2]]


@pytest.mark.parametrize("name", INDEXES)
def test_another_index(read, name):
    with pytest.raises(UserError, match=r"train\.(idx|bin)"):
        read(*INDEXES[name])
