"""A checkpoint saved over another one is complete, or the old one is kept."""

import resource
import shutil
import signal

import pytest
import torch

from s2sft_fairseq.checkpoints import saving
from s2sft_fairseq.checkpoints.saving import check_whole, copy_checkpoint, save_checkpoint
from s2sft_fairseq.errors import UserError

STATE = {"model": {"weight": torch.arange(500_000.0)}}  # 2 MB
OLD = {"model": {"weight": torch.zeros(3)}}


@pytest.fixture
def full_disk(monkeypatch):
    """Let no file grow beyond 1 MB, as on a full disk, until a number of pauses between tries are over."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    slept = []

    def fill(pauses):
        def sleep(seconds):
            slept.append(seconds)
            if len(slept) == pauses:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

        monkeypatch.setattr(saving.time, "sleep", sleep)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
        return slept

    yield fill
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, previous)


def load(path):
    return torch.load(path, weights_only=True)["model"]["weight"]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_saves_and_copies(tmp_path):
    save_checkpoint(STATE, tmp_path / "new" / "a.pt")
    copy_checkpoint(tmp_path / "new" / "a.pt", str(tmp_path / "new" / "b.pt"))
    assert torch.equal(load(tmp_path / "new" / "a.pt"), STATE["model"]["weight"])
    assert (tmp_path / "new" / "a.pt").read_bytes() == (tmp_path / "new" / "b.pt").read_bytes()
    assert not (tmp_path / "new" / "a.pt").samefile(tmp_path / "new" / "b.pt")
    assert names(tmp_path / "new") == ["a.pt", "b.pt"]


@pytest.mark.parametrize("pauses", [1, 2])
def test_a_disk_that_is_full_for_some_seconds(tmp_path, full_disk, pauses, caplog):
    path = tmp_path / "checkpoint_last.pt"
    save_checkpoint(OLD, path)
    slept = full_disk(pauses)
    save_checkpoint(STATE, path)
    assert torch.equal(load(path), STATE["model"]["weight"])
    assert slept == list(saving.PAUSES[:pauses])
    assert names(tmp_path) == [path.name]
    assert caplog.text.count(f"{path} could not be saved (File too large); next try in") == pauses


def test_a_disk_that_stays_full(tmp_path, full_disk):
    path = tmp_path / "checkpoint_last.pt"
    save_checkpoint(OLD, path)
    slept = full_disk(99)
    with pytest.raises(UserError) as error:
        save_checkpoint(STATE, path)
    assert torch.equal(load(path), OLD["model"]["weight"])
    assert (slept, names(tmp_path)) == (list(saving.PAUSES), [path.name])
    whole = tmp_path / "whole.pt"
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    with whole.open("wb") as file:
        torch.save(STATE, file)
    message = str(error.value)
    assert message.startswith(f"{path} ") and "File too large in 3 tries" in message
    assert f" {whole.stat().st_size:,} bytes" in message


def test_a_copy_on_a_full_disk(tmp_path, full_disk):
    source, path = tmp_path / "checkpoint_1_20.pt", tmp_path / "checkpoint_last.pt"
    save_checkpoint(STATE, source)
    save_checkpoint(OLD, path)
    full_disk(1)
    copy_checkpoint(source, path)
    assert path.read_bytes() == source.read_bytes()
    save_checkpoint(OLD, path)
    full_disk(99)
    with pytest.raises(UserError, match=f"{path} .* needs {source.stat().st_size:,} bytes"):
        copy_checkpoint(source, path)
    assert torch.equal(load(path), OLD["model"]["weight"])


def test_a_copy_that_is_cut_short_without_an_error(tmp_path, monkeypatch):
    source, path = tmp_path / "checkpoint_1_20.pt", tmp_path / "checkpoint_last.pt"
    save_checkpoint(STATE, source)
    save_checkpoint(OLD, path)
    monkeypatch.setattr(saving.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(shutil, "copyfile", lambda one, other: other.write_bytes(source.read_bytes()[:999]))
    with pytest.raises(UserError, match="is not as long as"):
        copy_checkpoint(source, path)
    assert torch.equal(load(path), OLD["model"]["weight"])


def test_an_interrupted_save_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint_last.pt"
    save_checkpoint(OLD, path)

    def save_half(state, file):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", save_half)
    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(STATE, path)
    assert torch.equal(load(path), OLD["model"]["weight"])
    assert names(tmp_path) == [path.name]


def test_a_file_is_checked_before_it_gets_its_name(tmp_path, monkeypatch):
    path = tmp_path / "checkpoint_last.pt"
    save_checkpoint(OLD, path)
    monkeypatch.setattr(saving.time, "sleep", lambda seconds: None)
    save = torch.save

    def lose_the_end(state, file):
        save(state, file)
        file.truncate(1000)

    monkeypatch.setattr(torch, "save", lose_the_end)
    monkeypatch.setattr(saving, "_saved_size", lambda state: 2_000_000)
    with pytest.raises(UserError, match="is damaged"):
        save_checkpoint(STATE, path)
    assert torch.equal(load(path), OLD["model"]["weight"])


@pytest.mark.parametrize("spoil", [lambda data: data[:-1], lambda data: b"x" * 100 + data[100:], lambda data: b""])
def test_damage_is_found(tmp_path, spoil):
    path = tmp_path / "a.pt"
    save_checkpoint(OLD, path)
    check_whole(path)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(OSError, match=r"a\.pt is damaged"):
        check_whole(path)


def test_an_impossible_save_is_not_repeated(tmp_path, monkeypatch):
    monkeypatch.setattr(saving.time, "sleep", lambda seconds: pytest.fail("tried again"))

    def refuse(state, file):
        raise RuntimeError("no such storage")

    monkeypatch.setattr(torch, "save", refuse)
    with pytest.raises(RuntimeError, match="no such storage"):
        save_checkpoint(STATE, tmp_path / "a.pt")
    assert names(tmp_path) == []
