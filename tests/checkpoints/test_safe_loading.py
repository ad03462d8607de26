"""Checkpoints load without running code, and each bad file is refused by name."""

import argparse
import collections
import fractions
import io
import os
import pathlib
import pickle
import zipfile

import numpy as np
import pytest
import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import meters
from omegaconf import OmegaConf

import s2sft_fairseq
from s2sft_fairseq.checkpoints import safe_loading
from s2sft_fairseq.checkpoints.safe_loading import PlainArray, load_checkpoint, load_pickle
from s2sft_fairseq.errors import UserError

WEIGHTS = {"weight": torch.arange(10_000.0)}


class Foreign:
    """A type that is in no fairseq checkpoint."""


class Attack:
    """Runs a command when it is unpickled unsafely."""

    def __reduce__(self):
        return os.system, ("touch attacked",)


def save(path, state, **options):
    torch.save(state, path, **options)
    return path


def renamed(path, old, new):
    """Rewrite the pickle in a checkpoint with another module name, as an older release would have written it."""
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in entries.items():
            if name.endswith("data.pkl"):
                assert content.count(old) >= 1
                content = content.replace(old, new)
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("new_format", [True, False])
def test_loads_what_fairseq_saves(tmp_path, new_format):
    state = {
        "args": None,
        "cfg": {"model": argparse.Namespace(arch="unilm_tiny", lr=[0.1]), "common": {"seed": 1}},
        "model": collections.OrderedDict(WEIGHTS),
        "extra_state": {
            "metrics": [("default", [(1, "bleu", "SumMeter", {"sum": np.array([1, 2]), "round": None})])],
            "best": np.float64(0.5),
            "flags": [np.bool_(True), np.int64(3), np.float32(2.5), np.int32(4), np.float16(1.5), np.uint8(7)],
        },
    }
    loaded = load_checkpoint(save(tmp_path / "a.pt", state, _use_new_zipfile_serialization=new_format))
    assert loaded["cfg"] == state["cfg"]
    assert torch.equal(loaded["model"]["weight"], WEIGHTS["weight"])
    assert loaded["extra_state"]["best"] == 0.5
    assert loaded["extra_state"]["flags"] == state["extra_state"]["flags"]
    assert np.array_equal(loaded["extra_state"]["metrics"][0][1][0][3]["sum"], [1, 2])


@pytest.mark.parametrize("value", [np.array([1.5, 2.5]), np.float64(1.5)], ids=["array", "scalar"])
def test_numpy_values_saved_with_numpy_1(tmp_path, value):
    path = renamed(save(tmp_path / "old.pt", {"value": value}), b"numpy._core.", b"numpy.core.")
    assert np.array_equal(load_checkpoint(path)["value"], value)


@pytest.mark.parametrize("meter", [meters.AverageMeter(), meters.TimeMeter(), meters.StopwatchMeter()])
def test_meters_of_old_releases(tmp_path, meter):
    path = save(tmp_path / "meter.pt", {"meter": meter})
    assert type(load_checkpoint(path)["meter"]) is type(meter)
    renamed(path, b"fairseq.logging.meters", b"fairseq.meters")
    assert vars(load_checkpoint(path)["meter"]) == vars(meter)


def test_state_that_rank_0_sends_to_the_others():
    state = {
        "cfg": OmegaConf.create({"model": {"layers": [1, 2]}, "lr": [0.1], "none": None}),
        "model": WEIGHTS,
        "args": argparse.Namespace(a=1),
    }
    tensors = []
    buffer = io.BytesIO()
    torch.save(distributed_utils._split_tensors_from_obj(state, tensors), buffer)
    buffer.seek(0)
    with torch.serialization.safe_globals(safe_loading.types_between_ranks()):
        loaded = torch.load(buffer, map_location="cpu", weights_only=True)
    received = distributed_utils._put_tensors_in_obj(loaded, tensors)
    assert received["cfg"] == state["cfg"]
    assert received["cfg"].model.layers == [1, 2]
    assert received["model"]["weight"] is tensors[0]


def test_refuses_other_types_and_names_all_of_them(tmp_path):
    path = save(tmp_path / "foreign.pt", {"model": WEIGHTS, "a": Foreign(), "b": fractions.Fraction(1, 2)})
    names = rf"fractions\.Fraction, {Foreign.__module__}\.Foreign\."
    with pytest.raises(UserError, match=rf"foreign\.pt: refused, it holds {names} Only tensors.*write it again"):
        load_checkpoint(path)


def test_the_package_never_leaves_safe_mode():
    files = {path: path.read_text() for path in pathlib.Path(s2sft_fairseq.__path__[0]).rglob("*.py")}
    assert "weights_only=True" in files[pathlib.Path(safe_loading.__file__)]
    assert [path for path, text in files.items() if "weights_only=False" in text] == []


def test_refuses_other_types_in_the_format_before_pytorch_1_6(tmp_path):
    path = save(tmp_path / "old.pt", {"a": Foreign()}, _use_new_zipfile_serialization=False)
    with pytest.raises(UserError, match=rf"old\.pt: refused, it holds {Foreign.__module__}\.Foreign\."):
        load_checkpoint(path)


@pytest.mark.parametrize("new_format", [True, False])
def test_runs_no_code(tmp_path, monkeypatch, new_format):
    monkeypatch.chdir(tmp_path)
    path = save(tmp_path / "attack.pt", {"model": Attack()}, _use_new_zipfile_serialization=new_format)
    with pytest.raises(UserError, match=r"attack\.pt: refused, it holds posix\.system\."):
        load_checkpoint(path)
    assert not (tmp_path / "attacked").exists()


def damaged_files():
    buffer, old = io.BytesIO(), io.BytesIO()
    torch.save(WEIGHTS, buffer)
    torch.save(WEIGHTS, old, _use_new_zipfile_serialization=False)
    whole, old_whole = buffer.getvalue(), old.getvalue()
    flipped = bytearray(whole)
    for place in (70, 80, 90):  # in the pickle
        flipped[place] ^= 0xFF
    other_zip = io.BytesIO()
    with zipfile.ZipFile(other_zip, "w") as archive:
        archive.writestr("folder/a.txt", "a")
    return {
        "empty": b"",
        "ten_bytes": whole[:10],
        "half": whole[: len(whole) // 2],
        "without_its_end": whole[:-5],
        "flipped_bits": bytes(flipped),
        "old_format_half": old_whole[: len(old_whole) // 2],
        "old_format_fifty_bytes": old_whole[:50],
        "text": b"hello world\n" * 100,
        "web_page": b"<!DOCTYPE html>\n" * 100,
        "pickle": pickle.dumps({"a": 1}, protocol=2),
        "zip": other_zip.getvalue(),
        "zeros": bytes(5000),
    }


@pytest.mark.parametrize(("name", "content"), damaged_files().items(), ids=damaged_files())
def test_names_a_damaged_file_and_its_size(tmp_path, name, content):
    path = tmp_path / f"{name}.pt"
    path.write_bytes(content)
    told = rf"\({len(content):,} bytes\): not a PyTorch checkpoint, or a tr"
    with pytest.raises(UserError, match=rf"{name}\.pt {'is damaged' if name == 'flipped_bits' else told}"):
        load_checkpoint(path)


def test_names_a_missing_file_and_a_folder(tmp_path):
    with pytest.raises(UserError, match=r"nothing\.pt: no such checkpoint file"):
        load_checkpoint(tmp_path / "nothing.pt")
    with pytest.raises(
        UserError,
        match=rf"{tmp_path.name}: a checkpoint file or a model folder is needed, but this is a folder without config",
    ):
        load_checkpoint(tmp_path)


def test_refuses_what_is_not_a_dictionary(tmp_path):
    with pytest.raises(UserError, match=r"tensor\.pt: a checkpoint holds a dictionary, this file holds a Tensor"):
        load_checkpoint(save(tmp_path / "tensor.pt", torch.ones(3)))


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
    outside = pickle.loads(pickle.dumps(loaded))  # in a process without this package it would be the same
    assert type(outside["sum"]) is np.ndarray
    assert outside["type"] == np.dtype("f4")


def test_bytes_that_python_2_wrote_as_text(tmp_path):
    value = np.arange(2, dtype="<i4")
    pickled = pickle.dumps({"a": value}, protocol=2)
    start = pickled.index(b"c_codecs\nencode")  # that of the data; one of the type code comes before it
    assert pickled.count(b"X\x08\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00", start) == 1
    before, _, after = pickled.partition(b"X\x08\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00")
    head = before[: before.rindex(b"h")]  # without the call of encode, from the memo
    tail = after[after.index(pickle.REDUCE) + 1 :].lstrip(b"q")
    old = head + b"U\x08" + value.tobytes() + (tail[1:] if tail[:1] != b"t" else tail)
    path = tmp_path / "a.pdparams"
    path.write_bytes(old)
    assert torch.equal(load_pickle(path)["a"], torch.arange(2, dtype=torch.int32))
