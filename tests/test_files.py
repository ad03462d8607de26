"""Files and folders that exist complete or not at all, and locks."""

import errno
import fcntl
import os
import subprocess

import pytest

from s2sft_fairseq import files
from s2sft_fairseq.checksums import CHECKSUMS
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import (
    added_files,
    locked,
    new_folder,
    remove_temporary,
    sync,
    temporary_files,
    whole_file,
    write_whole,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name != CHECKSUMS)


def test_a_file_gets_its_name_once_it_is_complete(tmp_path):
    path = tmp_path / "new" / "file"
    with whole_file(path) as temporary:
        temporary.write_text("one")
        assert not path.exists()
    write_whole(path, lambda temporary: temporary.write_text("two"))
    assert path.read_text() == "two"
    assert names(path.parent) == ["file"]
    (tmp_path / "other").write_text("")
    assert path.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_two_writers_of_a_file(tmp_path):
    """Each writes its own; the file is the one that ends last."""
    path = tmp_path / "file"
    with whole_file(path) as one:
        one.write_text("o")
        write_whole(path, lambda two: two.write_text("two"))
        assert path.read_text() == "two"
        one.write_text("one")
    assert path.read_text() == "one" and names(tmp_path) == ["file"]


def test_temporary_files_of_a_file(tmp_path):
    path = tmp_path / "file[1]"
    (tmp_path / ".file[1].more.1-0123abcd.tmp").touch()  # belongs to another file
    (tmp_path / ".file[1].tmp").touch()
    (tmp_path / ".file[1].2-0123abcd.tmp").touch()
    with whole_file(path) as temporary:
        temporary.touch()
        assert {each.name for each in temporary_files(path)} == {temporary.name, ".file[1].2-0123abcd.tmp"}
    assert [each.name for each in temporary_files(path)] == [".file[1].2-0123abcd.tmp"]


def test_an_interrupted_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(KeyboardInterrupt), whole_file(path) as temporary:
        temporary.write_text("half")
        raise KeyboardInterrupt
    assert path.read_text() == "before"
    assert names(tmp_path) == ["file"]


def test_everything_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    done = []
    monkeypatch.setattr(files.os, "fsync", lambda descriptor: done.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    replace = os.replace
    monkeypatch.setattr(files.os, "replace", lambda old, new: done.append("renamed") or replace(old, new))
    write_whole(tmp_path / "file", lambda path: path.write_text("whole"))
    (written, *rest) = done
    assert written.startswith(str(tmp_path / ".file.")) and rest == ["renamed", str(tmp_path)]
    done.clear()
    with new_folder(tmp_path / "folder", "--to") as folder:
        (folder / "inner").write_text("")
        temporary = folder
    assert set(done) == {str(temporary / "inner"), str(temporary / CHECKSUMS), str(temporary), str(tmp_path)}


def test_files_that_cannot_be_synced(tmp_path, monkeypatch):
    def fail(number):
        def fsync(descriptor):
            raise OSError(number, os.strerror(number))

        return fsync

    monkeypatch.setattr(files.os, "fsync", fail(errno.EINVAL))
    sync(tmp_path)
    monkeypatch.setattr(files.os, "fsync", fail(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        sync(tmp_path)


@pytest.mark.process
def test_a_pipe_is_written_into(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with subprocess.Popen(["cat", str(path)], stdout=subprocess.PIPE) as reader:
        write_whole(path, lambda path: path.write_text("text"))
        assert reader.communicate()[0] == b"text"
    assert path.is_fifo()


def test_a_new_folder(tmp_path):
    folder = tmp_path / "folder"
    with pytest.raises(KeyboardInterrupt), new_folder(folder, "--to") as made:
        (made / "a").write_text("1")
        raise KeyboardInterrupt
    assert names(tmp_path) == []
    folder.mkdir()
    with new_folder(folder, "--to") as made:
        (made / "a").write_text("1")
        assert list(folder.iterdir()) == []
    assert (names(tmp_path), names(folder)) == (["folder"], ["a"])


def test_a_relative_new_folder(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with new_folder(files.Path(), "--to") as made:
        (made / "a").write_text("1")
    assert names(tmp_path / "here") == ["a"]


@pytest.mark.parametrize("exchange", [True, False], ids=["one step", "several steps"])
def test_a_folder_is_replaced_as_a_whole(tmp_path, monkeypatch, exchange):
    if not exchange:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    folder = tmp_path / "folder"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_text("old")
    with new_folder(folder, "--to", {"a", "b"}) as made:
        (made / "a").write_text("new")
        assert names(folder) == ["a", "b"]
    assert (names(folder), (folder / "a").read_text()) == (["a"], "new")
    assert names(tmp_path) == ["folder"]


def test_exchange(tmp_path):
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_text("")
    if not files._exchange(tmp_path / "one", tmp_path / "other"):
        pytest.skip("this system or file system cannot exchange names")
    assert (names(tmp_path / "one"), names(tmp_path / "other")) == (["other"], ["one"])


def test_other_folders_are_refused(tmp_path):
    folder, link = tmp_path / "folder", tmp_path / "link"
    folder.mkdir()
    link.symlink_to(folder)
    (tmp_path / "file").write_text("")
    for path in (link, tmp_path / "file"):
        with pytest.raises(UserError, match=f"--to {path} .* link or a file"), new_folder(path, "--to"):
            pass
    (folder / "a").write_text("")
    (folder / "mine").write_text("")
    with pytest.raises(UserError, match=rf"--to {folder} .* holds mine:"), new_folder(folder, "--to", {"a"}):
        pass
    (folder / "mine").unlink()
    (folder / "a").unlink()
    (folder / "a").symlink_to(tmp_path / "file")
    with pytest.raises(UserError, match=rf"--to {folder} .* holds a:"), new_folder(folder, "--to", {"a"}):
        pass


def test_a_folder_that_fills_meanwhile_is_kept(tmp_path):
    folder = tmp_path / "folder"
    with pytest.raises(UserError, match="holds mine"), new_folder(folder, "--to"):
        folder.mkdir()
        (folder / "mine").write_text("")
    assert names(folder) == ["mine"]


def test_a_folder_that_cannot_be_moved(tmp_path, monkeypatch):
    def rename(path, other):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(files.Path, "rename", rename)
    with pytest.raises(OSError, match="cross-device"), new_folder(tmp_path / "folder", "--to"):
        pass
    assert names(tmp_path) == []


def test_added_files(tmp_path):
    for name in ("train.bin", "train.idx", "valid.bin"):
        (tmp_path / name).write_text("old")
    with pytest.raises(KeyboardInterrupt), added_files(tmp_path) as made:
        (made / "train.bin").write_text("half")
        raise KeyboardInterrupt
    assert names(tmp_path) == ["train.bin", "train.idx", "valid.bin"]
    with added_files(tmp_path) as made:
        for name in ("train.bin", "train.idx", "test.bin"):
            (made / name).write_text("new")
        assert (tmp_path / "train.bin").read_text() == "old"
    assert {name: (tmp_path / name).read_text() for name in names(tmp_path)} == {
        **dict.fromkeys(("train.bin", "train.idx", "test.bin"), "new"),
        "valid.bin": "old",
    }


def test_old_and_new_files_never_mix(tmp_path, monkeypatch):
    for name in ("train.bin", "train.idx"):
        (tmp_path / name).write_text("old")
    rename, renamed = files.Path.rename, []

    def killed(path, other):
        if renamed:
            raise KeyboardInterrupt
        renamed.append(other)
        return rename(path, other)

    monkeypatch.setattr(files.Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt), added_files(tmp_path) as made:
        for name in ("train.bin", "train.idx"):
            (made / name).write_text("new")
    assert {name: (tmp_path / name).read_text() for name in names(tmp_path)} == {"train.bin": "new"}


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    (tmp_path / ".folder.12-0123abcd.tmp").mkdir()
    (tmp_path / ".folder.12-0123abcd.tmp" / "part").write_text("")
    mine = ["folder.partial", ".folder.tmp", ".other.12-0123abcd.tmp"]
    for name in mine:
        (tmp_path / name).write_text("")
    with new_folder(tmp_path / "folder", "--to"):
        pass
    assert names(tmp_path) == sorted(["folder", *mine])
    (tmp_path / ".file.12-0123abcd.tmp").symlink_to(tmp_path / "folder")
    remove_temporary(tmp_path, lambda name: name == "file")
    assert names(tmp_path) == sorted(["folder", *mine])


def test_a_folder_is_locked_by_one_process(tmp_path, lock_elsewhere):
    process = lock_elsewhere(tmp_path / files.LOCK)
    with pytest.raises(UserError, match=f"{tmp_path} is being written by another process"), locked(tmp_path):
        pass
    process.kill()
    process.wait()
    with locked(tmp_path):
        assert names(tmp_path) == [files.LOCK]
    assert names(tmp_path) == []
    lock_elsewhere(tmp_path / ".new.lock")
    with pytest.raises(UserError, match=f"{tmp_path / 'new'} is being"), new_folder(tmp_path / "new", "--to"):
        pass


def test_a_lock_that_its_holder_removes_meanwhile(tmp_path, monkeypatch):
    lockf, calls = fcntl.lockf, []

    def removed_before(descriptor, how):
        if not calls:
            (tmp_path / files.LOCK).unlink()
        calls.append(how)
        lockf(descriptor, how)

    monkeypatch.setattr(files.fcntl, "lockf", removed_before)
    with locked(tmp_path):
        assert names(tmp_path) == [files.LOCK]
    assert len(calls) == 2


def test_a_folder_that_was_only_locked_is_gone(tmp_path):
    with locked(tmp_path / "new"):
        pass
    with locked(tmp_path / "other"):
        (tmp_path / "other" / "file").write_text("")
    assert names(tmp_path) == ["other"]


def test_a_file_system_without_locks(tmp_path, monkeypatch, caplog):
    def lockf(descriptor, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(files.fcntl, "lockf", lockf)
    with locked(tmp_path):
        pass
    assert f"{tmp_path} cannot be locked (No locks available)" in caplog.text


def test_no_lock_is_written_through_a_link(tmp_path):
    (tmp_path / files.LOCK).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"), locked(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()
