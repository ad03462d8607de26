"""Commands that write to or next to a user's folder keep its other files."""

import json
import shutil

import pytest
from faults import killed_at_move
from hugging_face import save, their_model

from s2sft_fairseq.checksums import write_checksums
from s2sft_fairseq.commands.convert import main
from s2sft_fairseq.corpora.reading import Example, Malformed
from s2sft_fairseq.corpora.writing import write_corpus
from s2sft_fairseq.errors import UserError

pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return save("bert", their_model("bert"), tmp_path_factory.mktemp("source") / "bert")


def convert(source, destination, *words):
    main([str(source), "--to", str(destination), *words])


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_config_that_lists_foreign_files(source, tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "encoder"
    victim.write_text("precious")
    convert(source, folder)
    described = json.loads((folder / "config.json").read_text())
    described["files"] += ["../victim", str(victim), "notes.txt"]
    (folder / "config.json").write_text(json.dumps(described))
    write_checksums(folder)
    convert(source, folder)
    assert victim.read_text() == "precious"
    (folder / "config.json").write_text(json.dumps(described))
    write_checksums(folder)
    (folder / "notes.txt").write_text("precious")
    before = contents(folder)
    with pytest.raises(UserError, match=rf"--to {folder} .* holds notes\.txt:"):
        convert(source, folder)
    assert contents(folder) == before


def test_a_file_added_to_a_converted_encoder(source, tmp_path):
    folder = tmp_path / "encoder"
    convert(source, folder)
    (folder / "bpe.codes").write_text("mine")
    before = contents(folder)
    with pytest.raises(UserError, match=rf"--to {folder} .* holds bpe\.codes:"):
        convert(source, folder)
    assert contents(folder) == before


def test_links(source, tmp_path):
    folder, link, elsewhere = tmp_path / "encoder", tmp_path / "link", tmp_path / "elsewhere.pt"
    convert(source, folder)
    link.symlink_to(folder)
    before = contents(folder)
    with pytest.raises(UserError, match=f"--to {link} "):
        convert(source, link)
    assert contents(folder) == before
    (folder / "model.pt").rename(elsewhere)
    (folder / "model.pt").symlink_to(elsewhere)
    with pytest.raises(UserError, match=rf"--to {folder} .* holds model\.pt:"):
        convert(source, folder)
    assert elsewhere.read_bytes() == before["model.pt"]


@pytest.mark.process
def test_killed_while_it_replaces_a_conversion(source, tmp_path):
    convert(source, tmp_path / "before")
    convert(source, tmp_path / "after", "--add-token", "new")
    before, after = contents(tmp_path / "before"), contents(tmp_path / "after")
    folder, moves = shutil.copytree(tmp_path / "before", tmp_path / "encoder"), 1
    while killed_at_move(moves, lambda: convert(source, folder, "--add-token", "new")):
        assert contents(folder) in (before, after), moves
        moves += 1
    assert contents(folder) == after and moves > 1
    convert(source, folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["after", "before", "encoder"]


def test_a_folder_called_partial(tmp_path):
    mine = tmp_path / "corpus.partial"
    mine.mkdir()
    (mine / "notes.txt").write_text("precious")
    examples = [Example(tmp_path / "raw", 1, ("a",), ("b",))]
    write_corpus({"train": examples, "valid": examples}, tmp_path / "corpus", Malformed())
    assert (mine / "notes.txt").read_text() == "precious"
