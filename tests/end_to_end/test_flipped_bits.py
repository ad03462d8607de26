"""If a bit of any file that a command reads is flipped, the command ends with an error that names the file."""

import shutil
import zipfile

import pytest

from s2sft_fairseq import checksums

pytest.importorskip("safetensors", reason="is what a model folder holds")


@pytest.fixture(autouse=True)
def _nothing_was_checked(monkeypatch):
    monkeypatch.setattr(checksums, "_checked", set())


def flip(path):
    """Flip the lowest bit in the middle of a file, or of the largest member of an archive, where there is no padding.

    Letters become other letters, digits other digits.
    """
    data, place = bytearray(path.read_bytes()), path.stat().st_size // 2
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            member = max(archive.infolist(), key=lambda member: member.file_size)
            place = data.index(archive.read(member)) + member.file_size // 2
    data[place] ^= 1
    path.write_bytes(data)


@pytest.fixture
def refused(call_command):
    """Run a command that must fail because of a file."""

    def run(path, *words):
        done = call_command(*words, status=2)
        assert str(path) in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr

    return run


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "vocab.txt", "dict.txt"])
def test_a_model_folder(trained, toy, call_command, refused, tmp_path, name):
    call_command("export", trained("causal").best, "--tokenizer-dir", toy.folder, "--to", "model")
    (tmp_path / "in.txt").write_text("a b\n")
    words = ("generate", "--path", "model", "--input", "in.txt", "--output", "out.txt", "--cpu")
    call_command(*words)
    flip(tmp_path / "model" / name)
    refused(f"model/{name}", *words, "--overwrite")
    refused(tmp_path / "model" / name, "doctor", tmp_path)


@pytest.mark.parametrize("name", ["test.src-tgt.src.bin", "test.src-tgt.src.idx", "test.src-tgt.tgt.bin"])
def test_binarized_data(trained, toy, refused, tmp_path, name):
    data = shutil.copytree(toy.data, tmp_path / "data")
    flip(data / name)
    words = ("--path", trained("causal").best, "--cpu", "--gen-subset", "test")
    refused(data / name, "generate", data, *words)


def test_a_checkpoint(trained, toy, refused, tmp_path):
    path = shutil.copyfile(trained("causal").best, tmp_path / "checkpoint.pt")
    flip(path)
    refused(path, "validate", toy.data, "--path", path, "--cpu", "--batch-size", 8)


@pytest.mark.parametrize("name", ["model.pt", "config.json", "dict.txt"])
def test_a_converted_encoder(call_command, refused, tmp_path, name):
    from hugging_face import save, their_model

    pytest.importorskip("transformers", reason="transformers is not installed")
    source = save("bert", their_model("bert"), tmp_path / "source")
    call_command("convert", source, "--to", "encoder")
    flip(tmp_path / "encoder" / name)
    refused(f"encoder/{name}", "export", "encoder", "--format", "hugging_face", "--to", "exported")
    assert not (tmp_path / "exported").exists()
