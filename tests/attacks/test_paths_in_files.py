"""Names in files that lead out of their folder, or to the file itself."""

import json

import pytest
import torch
from raw_corpora import xsum

from s2sft_fairseq.checkpoints.source_files import open_source
from s2sft_fairseq.corpora.reading import Malformed
from s2sft_fairseq.corpora.summarization import read_xsum
from s2sft_fairseq.errors import UserError


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("model.safetensors.index.json", r"model\.safetensors\.index\.json"),
        ("../outside.bin", r"\.\./outside\.bin"),
        ("/etc/passwd", "/etc/passwd"),
        ("sub/inside.bin", r"sub/inside\.bin"),
        ("x" * 5000 + ".bin", "'xxx"),
        ("a\x00.bin", r"'a\\x00\.bin'"),
    ],
)
def test_an_index_with_paths_to_other_folders(tmp_path, name, missing):
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    for file in (tmp_path / "outside.bin", folder / "sub" / "inside.bin"):
        torch.save({"a": torch.zeros(1)}, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(UserError, match=rf"index\.json names 1 files, .* missing beside it: {missing}"):
        open_source(folder)


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": {}}}']
)
def test_an_invalid_index(tmp_path, content):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(UserError, match=r"index\.json must h"):
        open_source(tmp_path)


@pytest.mark.parametrize("name", ["../outside", "x" * 5000, "a\x00b", 7, {"a": 1}], ids=lambda name: f"{name!r:.12}")
def test_articles_of_xsum(tmp_path, name):
    xsum(tmp_path / "raw")
    (tmp_path / "raw" / "outside.summary").write_text("[SN]FIRST-SENTENCE[SN]\na\n[SN]RESTBODY[SN]\nb\n")
    path = tmp_path / "raw" / "XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json"
    path.write_text(json.dumps({"train": [name], "validation": [], "test": []}))
    malformed = Malformed()
    assert list(read_xsum(tmp_path / "raw", malformed)["train"]) == []
    assert len(malformed.lines()) == 1 and malformed.lines()[0].startswith(f"{path}, split train: there is no ")
