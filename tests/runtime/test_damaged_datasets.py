"""A damaged data set fails when it is opened, and not once more when it is deleted."""

import gc

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder

# What a `__del__` raises reaches pytest as this warning.
pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def prefix(tmp_path):
    prefix = str(tmp_path / "data")
    builder = MMapIndexedDatasetBuilder(prefix + ".bin", dtype=np.int32)
    builder.add_item(torch.tensor([1, 2, 3]))
    builder.finalize(prefix + ".idx")
    return prefix


@pytest.mark.parametrize(("end", "size"), [("bin", 0), ("idx", 0), ("idx", 20), ("idx", 30)])
def test_damaged(prefix, end, size):
    with open(f"{prefix}.{end}", "r+b") as file:
        file.truncate(size)
    with pytest.raises(Exception, match=r"empty file|unpack requires|buffer is smaller|doesn't match"):
        MMapIndexedDataset(prefix)
    gc.collect()


def test_whole(prefix):
    data = MMapIndexedDataset(prefix)
    assert data.sizes.tolist() == [3]
    file, index = data._bin_buffer_mmap._mmap, data._index._bin_buffer_mmap._mmap
    del data
    gc.collect()
    assert file.closed and index.closed
