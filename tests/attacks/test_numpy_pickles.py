"""Pickles that NumPy's own unpickling would trust: types with pointers among their fields, and wrong sizes."""

import pickle
import sys

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint, load_pickle
from s2sft_fairseq.errors import UserError

RECONSTRUCT, SCALAR = np._core.multiarray._reconstruct, np._core.multiarray.scalar


class Crafted:
    """Pickled as a call of any function; the result can then get any state."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


def dtype(kind, *state):
    return Crafted(np.dtype, (kind, False, True), *([state] if state else []))


def array(*state, kind=np.ndarray, shape=(0,), typecode=b"b"):
    return Crafted(RECONSTRUCT, (kind, shape, typecode), *([state] if state else []))


OBJECT = dtype("O8")
FLOAT = dtype("f8", 3, "<", None, None, None, -1, -1, 0)
OF_POINTERS = dtype("f8", 3, "|", None, ("a",), {"a": (OBJECT, 0)}, 8, 1, 0)

CRAFTED = {
    "a field of pointers": array(1, (4,), OF_POINTERS, False, b"A" * 32),
    "rows of pointers": array(1, (4,), dtype("f8", 3, "|", (OBJECT, (4,)), None, None, 8, 1, 0), False, b"A" * 32),
    "pointers": array(1, (4,), OBJECT, False, b"A" * 32),
    "objects": array(1, (1,), OBJECT, False, ["a"]),
    "the flag of pointers": array(1, (4,), dtype("f8", 3, "<", None, None, None, -1, -1, 63), False, b"A" * 32),
    "a number of another size": Crafted(
        SCALAR, (dtype("f8", 3, "|", None, ("a",), {"a": (FLOAT, 0)}, 10**6, 1, 0), b"A" * 8)
    ),
    "a number without its bytes": Crafted(SCALAR, (FLOAT, b"A" * 3)),
    "an object as a number": Crafted(SCALAR, (OBJECT, "a")),
    "a number of no type": Crafted(SCALAR, ("f8", b"A" * 8)),
    "text": array(1, (1,), dtype("U1", 3, "<", None, None, None, 4, 4, 8), False, bytes(4)),
    "dates": array(1, (1,), dtype("M8", 4, "<", None, None, None, -1, -1, 0, ({}, (b"D", 1, 1, 1))), False, bytes(8)),
    "records": dtype("V8"),
    "an aligned type": Crafted(np.dtype, ("f8", True, True)),
    "the other byte order": array(1, (1,), dtype("f8", 3, ">", None, None, None, -1, -1, 0), False, bytes(8)),
    "more than its bytes": array(1, (400_000,), FLOAT, False, bytes(32)),
    "a negative size": array(1, (-1, -4), FLOAT, False, bytes(32)),
    "a size that is no number": array(1, ("4",), FLOAT, False, bytes(32)),
    "a type by its name": array(1, (4,), "f8", False, bytes(32)),
    "bytes that are none": array(1, (4,), FLOAT, False, [1, 2, 3, 4]),
    "another form of state": array((4,), FLOAT, False, bytes(32)),
    "80 GB": array(shape=(100_000, 100_000), typecode="f8"),
    "another class": array(kind=np.dtype),
}


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_value_is_refused(tmp_path, name):
    path = tmp_path / "evil.pt"
    torch.save({"value": CRAFTED[name]}, path)
    assert path.stat().st_size < 2000
    with pytest.raises(
        UserError, match=r"evil\.pt: refused, it holds a NumPy value that is no number \(.*numpy.*\)\. Only"
    ):
        load_checkpoint(path)
    with pytest.raises(UserError, match=r"evil\.pt: refused, it holds a NumPy value that is no number"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


@pytest.mark.parametrize("name", ["a field of pointers", "objects", "80 GB", "an object as a number"])
def test_in_a_file_of_paddle(tmp_path, name):
    path = tmp_path / "evil.pdparams"
    path.write_bytes(pickle.dumps({"value": CRAFTED[name]}, protocol=2))
    with pytest.raises(UserError, match=r"evil\.pdparams: refused, it holds a NumPy value that is no number"):
        load_pickle(path)


def test_two_states(tmp_path):
    """With the second state NumPy would free the memory of the first, which a tensor may share by then."""
    state = (1, (4,), FLOAT, False, bytes(32))
    one, other = (pickle.dumps(value, protocol=2) for value in (array(*state), state))
    path = tmp_path / "evil.pdparams"
    path.write_bytes(one.removesuffix(b".") + other[2:].removesuffix(b".") + pickle.BUILD + pickle.STOP)
    with pytest.raises(UserError, match=r"refused, it holds .*a numpy\.ndarray with two states"):
        load_pickle(path)


READ = """
import sys
import s2sft_fairseq.plugin
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
print(load_checkpoint(sys.argv[1])["value"]["a"][0])
"""


def test_the_process_lives(tmp_path, run_process):
    """NumPy uses b"AAAAAAAA" as a pointer as soon as the field is read."""
    torch.save({"value": CRAFTED["a field of pointers"]}, tmp_path / "evil.pt")
    done = run_process(sys.executable, "-c", READ, "evil.pt", status=1)
    assert "error: evil.pt: refused, it holds a NumPy value that is no number" in done.stderr
