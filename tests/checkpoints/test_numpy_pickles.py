"""Numbers and arrays of NumPy's plain types come back from checkpoints as they were saved."""

import pickle

import numpy as np
import pytest
import torch

from s2sft_fairseq.checkpoints.numpy_pickles import PlainArray
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint, load_pickle

KINDS = (
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
)


def saved_and_loaded(path, value):
    torch.save({"value": value}, path)
    return load_checkpoint(path)["value"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_plain_type(tmp_path, kind):
    values = np.array([[0, 1, 1], [1, 0, 0]], dtype=kind)
    for value in (values, np.asfortranarray(values), values[:, ::2], np.array(1, dtype=kind)):
        loaded = saved_and_loaded(tmp_path / "a.pt", value)
        assert (loaded.dtype, loaded.shape) == (value.dtype, value.shape)
        assert np.array_equal(loaded, value)
    number = saved_and_loaded(tmp_path / "a.pt", values[0, 1])
    assert type(number) is type(values[0, 1])
    assert number == 1


def test_what_was_loaded_can_be_changed_and_saved_again(tmp_path):
    loaded = saved_and_loaded(tmp_path / "a.pt", {"sum": np.arange(3.0), "type": np.dtype("f4"), "same": np.float32(2)})
    loaded["sum"] += 1
    again = saved_and_loaded(tmp_path / "b.pt", loaded)
    assert type(again["sum"]) is PlainArray
    assert again["sum"].tolist() == [1, 2, 3]
    outside = pickle.loads(pickle.dumps(loaded))  # without this package
    assert type(outside["sum"]) is np.ndarray
    assert outside["type"] == np.dtype("f4")


def test_text_that_python_2_wrote_for_bytes(tmp_path):
    value = np.arange(2, dtype="<i4")
    pickled = pickle.dumps({"a": value}, protocol=2)
    start = pickled.index(b"c_codecs\nencode")  # of the data; of the type code before it there is another one
    assert pickled.count(b"X\x08\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00", start) == 1
    before, _, after = pickled.partition(b"X\x08\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00")
    head = before[: before.rindex(b"h")]  # the call of encode, from the memo
    tail = after[after.index(pickle.REDUCE) + 1 :].lstrip(b"q")
    old = head + b"U\x08" + value.tobytes() + (tail[1:] if tail[:1] != b"t" else tail)
    path = tmp_path / "a.pdparams"
    path.write_bytes(old)
    assert torch.equal(load_pickle(path)["a"], torch.arange(2, dtype=torch.int32))
