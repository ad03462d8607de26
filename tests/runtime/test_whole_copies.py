"""A checkpoint that is written over is there until its successor is whole."""

import shutil

import pytest
from fairseq.file_io import PathManager


def test_copies(tmp_path):
    source, target = tmp_path / "checkpoint_1_20.pt", tmp_path / "checkpoint_last.pt"
    source.write_bytes(b"new")
    target.write_bytes(b"old")
    assert PathManager.copy(str(source), str(target), overwrite=True)
    assert target.read_bytes() == source.read_bytes() == b"new"
    assert {path.name for path in tmp_path.iterdir()} == {source.name, target.name}


def test_the_old_one_outlives_a_copy_that_is_broken_off(tmp_path, monkeypatch):
    source, target = tmp_path / "checkpoint_1_20.pt", tmp_path / "checkpoint_last.pt"
    source.write_bytes(b"new and long")
    target.write_bytes(b"old")

    def copy_half(source_path, target_path):
        with open(source_path, "rb") as whole, open(target_path, "wb") as half:
            half.write(whole.read(6))
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copyfile", copy_half)
    with pytest.raises(KeyboardInterrupt):
        PathManager.copy(str(source), str(target), overwrite=True)
    assert target.read_bytes() == b"old"
