"""Checksums: a flipped bit is an error that names the file."""

import hashlib
import random
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch

from s2sft_fairseq import checksums
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checksums import (
    CHECKSUMS,
    SKIP,
    check_checkpoint,
    check_files,
    check_folder,
    read_checksums,
    write_checksums,
)
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import added_files, new_folder


@pytest.fixture(autouse=True)
def _nothing_was_checked(monkeypatch):
    monkeypatch.setattr(checksums, "_checked", set())


def flip(path: Path, place: int) -> None:
    """Flip a bit of a file; a negative place counts from the end."""
    data = bytearray(path.read_bytes())
    data[place] ^= 16
    path.write_bytes(data)


@pytest.fixture
def folder(tmp_path):
    """Two files and a folder in it with a third, a model card and a log."""
    with new_folder(tmp_path / "made", "--to") as staging:
        (staging / "a.txt").write_text("a\n")
        (staging / "b.bin").write_bytes(bytes(range(256)))
        (staging / "inner").mkdir()
        (staging / "inner" / "c d.txt").write_text("c\n")
        (staging / "README.md").write_text("card\n")
        (staging / "made.log").write_text("log\n")
    return tmp_path / "made"


@pytest.mark.process
def test_sha256sum_accepts_the_checksums(folder):
    done = subprocess.run(["sha256sum", "-c", CHECKSUMS], cwd=folder, capture_output=True, text=True, check=True)
    assert sorted(done.stdout.splitlines()) == ["a.txt: OK", "b.bin: OK", "inner/c d.txt: OK"]
    flip(folder / "b.bin", 100)
    assert subprocess.run(["sha256sum", "-c", CHECKSUMS], cwd=folder, capture_output=True).returncode == 1


def test_files(folder, monkeypatch):
    names = [folder / name for name in ("a.txt", "b.bin", "README.md", "missing")]
    check_files(*names)
    (folder / "README.md").write_text("another")
    flip(folder / "a.txt", 0)
    flip(folder / "b.bin", 3)
    with pytest.raises(UserError) as error:
        check_files(*names)
    assert len(error.value.problems) == 2
    for problem, name in zip(error.value.problems, ("a.txt", "b.bin"), strict=True):
        assert problem.startswith(f"{folder / name} ") and read_checksums(folder)[name][:12] in problem
        assert CHECKSUMS in problem and f"--accept {folder}" in problem
    monkeypatch.setenv(SKIP, "1")
    check_files(*names)
    monkeypatch.setenv(SKIP, "0")
    with pytest.raises(UserError):
        check_files(*names)
    write_checksums(folder)  # the user accepts changes made on purpose
    check_files(*names)


def test_a_file_is_read_once_in_a_process(folder, monkeypatch):
    read, sums_of = [], checksums._sums
    monkeypatch.setattr(checksums, "_sums", lambda paths: read.extend(paths) or sums_of(paths))
    for _ in range(2):
        check_files(folder / "a.txt", folder / "b.bin")
    assert read == [folder / "a.txt", folder / "b.bin"]


def test_checksums_of_sha256sum_in_its_binary_mode(folder):
    """Others write them beside their files."""
    (folder / CHECKSUMS).write_text((folder / CHECKSUMS).read_text().replace("  ", " *"))
    check_files(folder / "a.txt")
    flip(folder / "a.txt", 0)
    with pytest.raises(UserError, match=r"a\.txt is damaged"):
        check_files(folder / "a.txt")


def test_what_is_temporary_has_no_checksum(folder):
    for name in (".lock", ".a.txt.1-0123abcd.tmp"):
        (folder / name).touch()
    write_checksums(folder)
    assert read_checksums(folder).keys() == {"a.txt", "b.bin", "inner/c d.txt"}


@pytest.mark.parametrize(
    "line", ["a.txt", "0" * 63 + "  a.txt", "0" * 64 + "  ../a.txt", "0" * 64 + "  /a.txt", "\xff"]
)
def test_a_malformed_line(folder, line):
    text = (folder / CHECKSUMS).read_text()
    (folder / CHECKSUMS).write_bytes(text.encode() + line.encode("latin1") + b"\n")
    with pytest.raises(UserError, match=f"{CHECKSUMS}, line 4 "):
        check_files(folder / "a.txt")
    assert any("line 4" in problem for problem in check_folder(folder))


def test_added_files_keep_the_checksums_of_others(folder):
    before = read_checksums(folder)
    with added_files(folder) as staging:
        (staging / "a.txt").write_text("other\n")
        (staging / "new").write_text("new\n")
    now = read_checksums(folder)
    assert now.keys() == before.keys() | {"new"}
    assert now["a.txt"] != before["a.txt"] and now["b.bin"] == before["b.bin"]
    check_files(*(folder / name for name in now))


STATE = {"model": {"weight": torch.arange(1000.0)}, "cfg": {"a": 1}}


@pytest.fixture
def checkpoint(tmp_path):
    torch.save(STATE, tmp_path / "checkpoint.pt")
    return tmp_path / "checkpoint.pt"


def test_a_checkpoint(checkpoint, monkeypatch):
    """A flipped bit of the weights, which PyTorch would load as another number."""
    check_checkpoint(checkpoint)
    place = checkpoint.read_bytes().index(torch.tensor([7.0]).numpy().tobytes() + torch.tensor([8.0]).numpy().tobytes())
    flip(checkpoint, place + 2)
    assert not torch.equal(torch.load(checkpoint)["model"]["weight"], STATE["model"]["weight"])
    with pytest.raises(UserError, match=f"^{checkpoint} .*data/0 .*CRC-32"):
        load_checkpoint(checkpoint)
    monkeypatch.setenv(SKIP, "1")
    assert len(load_checkpoint(checkpoint)["model"]["weight"]) == 1000


def test_every_byte_of_a_checkpoint(checkpoint):
    """Flipping any byte is either an error that names the file or changes nothing that is loaded."""
    whole, draw = checkpoint.read_bytes(), random.Random(1)
    loaded = 0
    for place in [*range(64), *draw.sample(range(len(whole)), 300), *range(len(whole) - 200, len(whole))]:
        checkpoint.write_bytes(whole)
        flip(checkpoint, place)
        checksums._checked.clear()
        try:
            found = load_checkpoint(checkpoint)
        except UserError as error:
            assert str(checkpoint) in str(error)
            continue
        loaded += 1
        assert found["cfg"] == STATE["cfg"] and torch.equal(found["model"]["weight"], STATE["model"]["weight"])
    assert loaded < 300  # padding, and fields that are not read


def test_archives_without_checksums(tmp_path):
    """PyTorch can leave the checksums out, and files before PyTorch 1.6 are not archives."""
    torch.serialization.set_crc32_options(False)
    try:
        torch.save(STATE, tmp_path / "without.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    torch.save(STATE, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for name in ("without.pt", "old.pt"):
        assert torch.equal(load_checkpoint(tmp_path / name)["model"]["weight"], STATE["model"]["weight"])


def test_a_compressed_member_is_not_inflated(tmp_path):
    """A small file may hold gigabytes."""
    with zipfile.ZipFile(tmp_path / "bomb.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(1 << 24))
    assert list(check_folder(tmp_path)) == []
    with pytest.raises(UserError, match=r"bomb\.pt"):
        load_checkpoint(tmp_path / "bomb.pt")


def test_folders(folder, checkpoint):
    assert list(check_folder(folder.parent)) == []
    shutil.copytree(folder, folder.parent / "copy")
    (folder / "a.txt").unlink()
    flip(folder.parent / "copy" / "b.bin", 0)
    flip(checkpoint, -300)
    checksums._checked.clear()
    problems = sorted(check_folder(folder.parent))
    assert len(problems) == 2 + any("checkpoint.pt" in problem for problem in problems)
    assert f"{folder / 'a.txt'} is missing" in problems
    assert any(str(folder.parent / "copy" / "b.bin") in problem for problem in problems)


def test_the_command(folder, call_command):
    assert "all files" in call_command("doctor", folder).stdout
    flip(folder / "a.txt", 0)
    checksums._checked.clear()
    assert str(folder / "a.txt") in call_command("doctor", folder, status=2).stderr
    call_command("doctor", "--accept", folder)
    assert "all files" in call_command("doctor", folder).stdout
    done = call_command("doctor", folder, folder.parent / "nowhere", "other", status=2)
    assert str(folder.parent / "nowhere") in done.stderr and "other" in done.stderr
    done = call_command("doctor", "--accept", folder.parent, status=2)
    assert CHECKSUMS in done.stderr and str(folder.parent) in done.stderr


def test_a_file_of_checksums_that_is_too_large(tmp_path, monkeypatch):
    (tmp_path / "SHA256SUMS").write_text("0" * 101)
    monkeypatch.setattr(checksums, "_LARGEST", 100)
    with pytest.raises(UserError, match="SHA256SUMS must have at most 100 bytes, but has 101"):
        read_checksums(tmp_path)


@pytest.mark.process
def test_names_of_every_kind(tmp_path):
    """They are written as sha256sum writes them."""
    names = [" a", "  a ", "*a", "a\nb", "a\rb", "a\\nb", "\\a", "a\u2028b", "a\x85b", "a\x1cb", "\udcff", "ä"]
    for name in names:
        (tmp_path / name).write_text("text")
    write_checksums(tmp_path)
    assert read_checksums(tmp_path) == dict.fromkeys(sorted(names), hashlib.sha256(b"text").hexdigest())
    done = subprocess.run(["sha256sum", "-c", "--quiet", "SHA256SUMS"], cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b"")
    for name in names:
        check_files(tmp_path / name)
        (tmp_path / name).write_text("other")
        with pytest.raises(UserError, match="SHA256SUMS"):
            check_files(tmp_path / name)
