"""Parts of received folders that are pipes, devices, or links to files elsewhere, whose content would be copied."""

import os
import shutil

import pytest
from exported import write_model_folder
from hugging_face import save, their_model

from s2sft_fairseq.api.loading import load
from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checkpoints.source_files import open_source
from s2sft_fairseq.checksums import check_files, check_folder, write_checksums
from s2sft_fairseq.commands.convert import main as convert
from s2sft_fairseq.data.binarized_text import load_dictionary, load_split
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.exports.hugging_face import export_to_hugging_face
from s2sft_fairseq.models.model_folder import export_folder
from s2sft_fairseq.tokenization.folder import open_tokenizer

SECRET = "the key of this machine"


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """A BERT of `transformers`, the converted encoder, and a model folder."""
    made = tmp_path_factory.mktemp("sources")
    save("bert", their_model("bert"), made / "bert")
    convert([str(made / "bert"), "--to", str(made / "encoder")])
    write_model_folder(made / "model")
    return made


@pytest.fixture(params=["outside", "dangling", "pipe", "device"])
def replace(request, tmp_path):
    """A function that replaces a file by something that no received folder may hold."""
    (tmp_path / "secret").write_text(SECRET)

    def replace(file):
        file.unlink(missing_ok=True)
        if request.param == "pipe":
            os.mkfifo(file)
        else:
            file.symlink_to({"outside": "../secret", "dangling": "../absent", "device": "/dev/zero"}[request.param])

    return replace


def refused(folder, name, replace, call):
    replace(folder / name)
    before = sorted(folder.parent.rglob("*"))
    with pytest.raises(UserError) as raised:
        call(folder)
    (problem,) = [each for each in raised.value.problems if "must be a file" in each]
    assert f"{folder / name} must be a file" in problem and SECRET not in str(raised.value)
    assert sorted(folder.parent.rglob("*")) == before


@pytest.mark.parametrize(
    "name",
    [
        *("config.json", "model.safetensors", "vocab.txt", "special_tokens_map.json", "tokenizer_config.json"),
        *("added_tokens.json", "dict.txt", "tokenizer.json", "other.model"),
    ],
)
def test_conversion(sources, tmp_path, replace, name):
    folder = shutil.copytree(sources / "bert", tmp_path / "bert")
    refused(folder, name, replace, lambda folder: convert([str(folder), "--to", str(tmp_path / "made")]))


@pytest.mark.parametrize(
    "name", ["model.pt", "config.json", "dict.txt", "vocab.txt", "special_tokens_map.json", "SHA256SUMS"]
)
def test_a_converted_encoder(sources, tmp_path, replace, name):
    folder = shutil.copytree(sources / "encoder", tmp_path / "encoder")
    refused(folder, name, replace, lambda folder: export_to_hugging_face(folder, tmp_path / "made"))


@pytest.mark.parametrize("name", ["model.pt", "config.json", "dict.txt"])
def test_a_pretrained_encoder(sources, tmp_path, replace, name):
    folder = shutil.copytree(sources / "encoder", tmp_path / "encoder")
    refused(folder, name, replace, PretrainedEncoder.open)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "config.json", "dict.txt", "vocab.txt", "special_tokens_map.json", "SHA256SUMS"]
)
def test_a_model_folder(sources, tmp_path, replace, name):
    folder = shutil.copytree(sources / "model", tmp_path / "model")
    refused(folder, name, replace, lambda folder: export_folder(folder, tmp_path / "made"))
    with pytest.raises(UserError, match=rf"{folder / name} must be a file"):
        load(folder, None, "cpu", "float32", None)


def test_names_of_weights(tmp_path, replace):
    for name in ("model.pdparams", "checkpoint.pt", "unilm.bin"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / "unilm-config.json").write_text("{}")
        refused(folder, name, replace, open_source)
    shard = tmp_path / "shards"
    shard.mkdir()
    (shard / "model.safetensors.index.json").write_text('{"weight_map": {"a": "part.safetensors"}}')
    refused(shard, "part.safetensors", replace, open_source)


@pytest.mark.parametrize("name", ["vocab.txt", "tokenizer.json", "special_tokens_map.json", "dict.txt"])
def test_a_folder_in_the_place_of_a_file(sources, tmp_path, name):
    folder = shutil.copytree(sources / "model", tmp_path / "model")
    (folder / name).unlink(missing_ok=True)
    (folder / name).mkdir()
    with pytest.raises(UserError, match=rf"{folder / name} must be a file, but is a folder"):
        load(folder, None, "cpu", "float32", None)


def test_a_file_that_was_not_copied(sources, tmp_path, monkeypatch):
    """Without it, text would be read in another way."""
    folder = shutil.copytree(sources / "model", tmp_path / "model")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    write_checksums(folder)
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match=r"model lacks tokenizer_config.json, which its SHA256SUMS names"):
        open_tokenizer(folder)
    monkeypatch.setenv("S2SFT_SKIP_CHECKSUMS", "1")
    assert open_tokenizer(folder).encode("w5") == "w5"


@pytest.mark.parametrize("name", ["vocab.txt", "vocab.json", "merges.txt", "tokenizer.json", "x.model", "x.codes"])
def test_a_tokenizer(sources, tmp_path, replace, name):
    folder = shutil.copytree(sources / "bert", tmp_path / "bert")
    refused(folder, name, replace, open_tokenizer)


def test_a_tokenizer_of_the_user(sources, tmp_path):
    """Its files may be links to files elsewhere, but are not copied."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    (folder / "vocab.txt").symlink_to(sources / "bert" / "vocab.txt")
    assert open_tokenizer(folder).encode("w5") == "w5"
    with pytest.raises(UserError, match=rf"{folder}/vocab\.txt must be a file of its folder"):
        export_folder(sources / "model", tmp_path / "made", folder)
    os.mkfifo(folder / "tokenizer.json")
    with pytest.raises(UserError, match=rf"{folder}/tokenizer\.json must be a file, but is a pipe"):
        open_tokenizer(folder)


def test_checksums(sources, tmp_path, replace):
    folder = shutil.copytree(sources / "encoder", tmp_path / "encoder")
    assert list(check_folder(folder)) == []
    for name in ("model.pt", "other.pt"):
        replace(folder / name)
    problems = list(check_folder(folder))
    assert all("must be a file" in each for each in problems)
    assert {name for name in ("model.pt", "other.pt") for each in problems if f"{folder / name} must" in each} == {
        "model.pt",
        "other.pt",
    }
    replace(folder / "SHA256SUMS")
    with pytest.raises(UserError, match="SHA256SUMS must be a file"):
        check_files(folder / "config.json")


def test_a_checkpoint_that_the_user_names(tmp_path):
    os.mkfifo(tmp_path / "checkpoint.pt")
    for load_named in (load_checkpoint, open_source):
        with pytest.raises(UserError, match=r"checkpoint\.pt\b.* is a pipe"):
            load_named(tmp_path / "checkpoint.pt")


@pytest.mark.parametrize("end", ["idx", "bin"])
def test_binarized_data(tmp_path, tiny_data, end):
    """Its files may be links to files elsewhere, but no pipes."""
    folder = shutil.copytree(tiny_data, tmp_path / "data")
    file = next(folder.glob(f"train.*.src.{end}"))
    shutil.move(file, tmp_path / "elsewhere")
    file.symlink_to("../elsewhere")
    arguments = (folder, "train", "src", "tgt", load_dictionary(folder, "src", "tgt"), None, False)
    assert len(load_split(*arguments)[0]) > 0
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UserError, match=rf"{file} must be a file, but is a pipe"):
        load_split(*arguments)


def test_a_cache_of_hugging_face(sources, tmp_path):
    model = tmp_path / "models--owner--name"
    snapshot = model / "snapshots" / "0a1b"
    snapshot.mkdir(parents=True)
    (model / "blobs").mkdir()
    for number, path in enumerate(sorted((sources / "bert").iterdir())):
        shutil.copy(path, model / "blobs" / str(number))
        (snapshot / path.name).symlink_to(f"../../blobs/{number}")
    convert([str(snapshot), "--to", str(tmp_path / "made")])
    for name in ("vocab.txt", "dict.txt"):
        assert (tmp_path / "made" / name).read_bytes() == (sources / "encoder" / name).read_bytes()
    assert not (tmp_path / "made" / "vocab.txt").is_symlink()
