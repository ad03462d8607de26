"""Names on the Hugging Face hub, with a small server on the loopback in its place."""

import logging
from pathlib import Path

import pytest
from hub_server import commit, serving
from huggingface_hub import constants

from s2sft_fairseq.checkpoints.source_files import find_weights
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.hub import is_hub_name, local_path, name_of, path_or_name, tokenizer_path
from s2sft_fairseq.recipes.finetune_trials import name_of_encoder

ENCODER = {
    "config.json": "{}",
    "vocab.txt": "[PAD]\n",
    "model.safetensors": "weights",
    "pytorch_model.bin": "the same weights",
    "tf_model.h5": "the same weights",
    "modeling_code.py": "raise SystemExit",
    "onnx/config.json": "{}",
}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    folder = tmp_path / "encoder"
    for name, text in ENCODER.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    older = tmp_path / "older"
    older.mkdir()
    (older / "config.json").write_text("{}")
    (older / "pytorch_model.bin").write_text("weights")
    monkeypatch.chdir(tmp_path)
    with serving(monkeypatch, tmp_path / "cache", {"tiny-bert": folder, "someone/older": older}) as server:
        yield server


def test_needed_files_only(hub):
    folder = local_path("tiny-bert")
    assert sorted(hub.files) == ["config.json", "model.safetensors", "vocab.txt"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(hub.files)
    assert (folder / "model.safetensors").read_text() == "weights"


def test_older_weights(hub):
    folder = local_path("someone/older@main")
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "pytorch_model.bin"]


def test_tokenizer_without_weights(hub):
    assert sorted(path.name for path in tokenizer_path("tiny-bert").iterdir()) == ["config.json", "vocab.txt"]


def test_second_time_from_the_cache(hub, monkeypatch):
    folder = local_path("tiny-bert")
    hub.files.clear()
    assert local_path("tiny-bert") == folder
    assert not hub.files
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert local_path(f"tiny-bert@{commit('tiny-bert')}") == folder
    assert local_path("tiny-bert") == folder


def test_offline(hub, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"tiny-bert.*HF_HUB_OFFLINE.*cache"):
        local_path("tiny-bert")


def test_a_hub_that_does_not_answer(hub, monkeypatch):
    """As behind a firewall: the cache serves, or the message names the wait."""
    folder = local_path("tiny-bert")
    hub.is_silent = True
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.1)
    assert local_path("tiny-bert") == folder
    with pytest.raises(UserError, match=r"someone/older.*no answer within 0\.1 s"):
        local_path("someone/older")


def test_addresses_are_not_logged(hub, caplog):
    """Those of files may be signed, and let others download private models."""
    caplog.set_level(logging.INFO)
    local_path("tiny-bert")
    assert "tiny-bert is in" in caplog.text and "resolve" not in caplog.text


def test_a_password_in_the_address_is_not_printed(hub, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(constants, "ENDPOINT", "http://me:secret@127.0.0.1:9")
    with pytest.raises(UserError, match=r"tiny-bert.*http://127\.0\.0\.1:9 was not reached") as caught:
        local_path("tiny-bert")
    assert "secret" not in f"{caught.value}{caplog.text}"


def test_the_cache_as_a_folder(hub):
    folder = local_path("tiny-bert")
    with pytest.raises(UserError, match=f"Hugging Face's cache: give its files, which are in {folder}"):
        find_weights(folder.parent.parent)


def test_unknown_model_and_revision(hub):
    with pytest.raises(UserError, match=f"someone/none.*{hub.url}.*HF_TOKEN"):
        local_path("someone/none")
    with pytest.raises(UserError, match=r"a/b\.git is no file or folder here .*, and no name of a model on .*git"):
        local_path("a/b.git")
    with pytest.raises(UserError, match=r"tiny-bert@v9.*no revision v9"):
        local_path("tiny-bert@v9")


def test_no_network(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=f"bert-base-uncased.*127.0.0.1:9 was not reached.*{tmp_path}.*give its folder"):
        local_path("bert-base-uncased")


def test_paths_are_no_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    files = ("checkpoints/last.pt", "model.gguf", ".lock")
    for path in ("out", "out/model", "./bert", "../bert", "/bert", "a/b/c", "", "a b", *files):
        assert not is_hub_name(path), path
        assert str(local_path(path)) == str(type(tmp_path)(path))
    for name in ("bert-base-uncased", "google-bert/bert-base-uncased", "a/b.c@refs/pr/1"):
        assert is_hub_name(name), name


@pytest.fixture
def parts_on_hub(tiny_parts, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    models = {"me/encoder": tiny_parts / "encoder", "me/model": tiny_parts / "model"}
    (tmp_path / "test.src").write_text("a b\n")
    with serving(monkeypatch, tmp_path / "cache", models):
        yield tiny_parts


def test_an_argument_that_can_only_be_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert not is_hub_name(path_or_name("./bert-base-uncased"))
    assert is_hub_name(path_or_name("bert-base-uncased"))


def test_models_in_python_and_on_the_command_line(parts_on_hub, call_command):
    from s2sft_fairseq import Seq2Seq

    expected = Seq2Seq.from_pretrained(parts_on_hub / "model", device="cpu").generate("a b")
    assert Seq2Seq.from_pretrained("me/model", device="cpu").generate("a b") == expected
    call_command("generate", "--path", "me/model", "--input", "test.src", "--output", "out.txt", "--cpu")
    call_command("generate", "--path=me/model@main", "--input", "test.src", "--output", "again.txt", "--cpu")
    assert Path("out.txt").read_text() == Path("again.txt").read_text() == f"{expected}\n"
    call_command("export", "me/model", "--to", "exported")
    assert Path("exported/model.safetensors").is_file()


def test_tokenizers_on_the_command_line(parts_on_hub, call_command):
    call_command("tokenize", "--tokenizer-dir", "me/encoder", "--input", "test.src", "--output-dir", "tokens")
    assert Path("tokens/test.src").read_text() == "a b\n"


def test_encoders_of_finetune_and_recipe(parts_on_hub, tmp_path, call_command):
    from s2sft_fairseq.corpora.pairs import USUAL
    from s2sft_fairseq.recipes.finetune import Finetuning

    (tmp_path / "pairs.tsv").write_text("a\tb\n")
    settings = {"encoder": "me/encoder", "tokenizer_dir": "me/encoder", "output": "out"}
    finetuning = Finetuning({"train": [tmp_path / "pairs.tsv"]}, USUAL, settings, [], lambda *_: None)
    assert Path(finetuning.settings.encoder, "model.pt").is_file()
    assert Path(finetuning.settings.tokenizer_dir, "dict.txt").is_file()
    failed = call_command("recipe", "e2e", "--encoder", "me/none", "--raw", tmp_path, status=2)
    assert "me/none" in failed.stderr and "127.0.0.1" in failed.stderr
    call_command("recipe", "e2e", "--encoder", "me/none", "--raw", tmp_path, "--dry-run", "--updates", 9)


def test_names_of_folders(hub, tmp_path):
    assert name_of(local_path("tiny-bert")) == "tiny-bert"
    assert name_of_encoder(local_path("someone/older")) == "someone/older"
    assert name_of(tmp_path / "encoder") == "encoder"
