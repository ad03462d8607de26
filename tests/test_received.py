import os
import socket

import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.received import check_parts, has_part, part, regular_file


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "folder"
    made.mkdir()
    (made / "vocab.txt").write_text("a\n")
    (tmp_path / "secret").write_text("key\n")
    return made


def test_files_of_a_folder(folder):
    (folder / "link.txt").symlink_to("vocab.txt")
    (folder.parent / "other").symlink_to(folder)
    for name in ("vocab.txt", "link.txt"):
        assert part(folder / name) == folder / name and has_part(folder / name)
        assert has_part(folder.parent / "other" / name)
    assert not has_part(folder / "absent.txt")
    with pytest.raises(UserError, match=r"absent\.txt cannot be read"):
        part(folder / "absent.txt")


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ("../secret", r"link that leads out of it, '\.\./secret'"),
        ("{tmp}/secret", "link that leads out of it, "),
        ("link.txt", "link to nothing, 'link.txt'"),  # to itself
        ("../absent", r"link to nothing, '\.\./absent'"),
        ("/dev/zero", "a link to a device"),
        ("..", "a link to a folder"),
    ],
)
def test_links(folder, target, what):
    (folder / "link.txt").symlink_to(target.format(tmp=folder.parent))
    for check in (part, has_part):
        with pytest.raises(UserError, match=rf"{folder}/link\.txt must be a file.*{what}"):
            check(folder / "link.txt")


def test_a_link_through_another_file(folder):
    (folder / "inner.txt").symlink_to("../secret")
    (folder / "link.txt").symlink_to("inner.txt")
    with pytest.raises(UserError, match="leads out of it"):
        part(folder / "link.txt")


def test_other_kinds_of_files(folder, monkeypatch):
    os.mkfifo(folder / "pipe")
    (folder / "folder").mkdir()
    monkeypatch.chdir(folder)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind("socket")
        paths = [folder / name for name in ("pipe", "folder", "socket", "vocab.txt", "absent")]
        with pytest.raises(UserError) as raised:
            check_parts(paths)
        assert raised.value.problems == [
            f"{folder}/pipe must be a file, but is a pipe",
            f"{folder}/folder must be a file, but is a folder",
            f"{folder}/socket must be a file, but is a socket",
        ]
    with pytest.raises(UserError, match="is a pipe"):
        regular_file(folder / "pipe")


def test_a_file_that_the_user_names_may_be_a_link(folder):
    (folder / "link.txt").symlink_to("../secret")
    assert regular_file(folder / "link.txt").read_text() == "key\n"


def test_a_cache_of_hugging_face(tmp_path):
    model = tmp_path / "models--owner--name"
    snapshot = model / "snapshots" / "0a1b"
    (model / "blobs").mkdir(parents=True)
    (snapshot / "onnx").mkdir(parents=True)
    (model / "blobs" / "12ef").write_text("{}")
    (snapshot / "config.json").symlink_to("../../blobs/12ef")
    (snapshot / "onnx" / "config.json").symlink_to("../../../blobs/12ef")
    (snapshot / "vocab.txt").symlink_to("../../../secret")
    (tmp_path / "secret").write_text("key")
    assert has_part(snapshot / "config.json") and has_part(snapshot / "onnx" / "config.json")
    with pytest.raises(UserError, match=r"vocab\.txt .*leads out of it"):
        has_part(snapshot / "vocab.txt")
