"""If a bit of any file that a command reads is flipped, the command ends with an error that names the file."""

import shutil
import zipfile

import pytest
from raw_corpora import squad

from s2sft_fairseq import checksums
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.question_answering.questions import Question, read_questions

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


def test_a_symbol_in_both_dictionaries(toy, refused, tmp_path):
    data = shutil.copytree(toy.data, tmp_path / "data")
    for side in ("src", "tgt"):
        path = data / f"dict.{side}.txt"
        path.write_text(path.read_text().replace("z 1\n", "Z 1\n"))
    refused(data / "dict.src.txt", "train", data, *toy.training, "--save-dir", "saved")
    assert not list(tmp_path.rglob("*.pt"))


@pytest.mark.parametrize("name", ["labels.txt", "train.label", "valid.label"])
def test_labels(toy, letters, call_command, refused, tmp_path, name):
    words = ("--trainpref", toy.raw / "train.src", "--validpref", toy.raw / "valid.src", "--workers", 1)
    call_command("preprocess", "--only-source", *words, "--srcdict", letters.dictionary, "--destdir", "data")
    data = tmp_path / "data"
    (data / "labels.txt").write_text("0\n1\n")
    for split, count in (("train", 200), ("valid", 13)):
        (data / f"{split}.label").write_text("0\n" * count)
    checksums.write_checksums(data)
    flip(data / name)
    refused(
        data / name,
        "train",
        data,
        "--task",
        "unilm_classification",
        *toy.model,
        *toy.layout[:2],
        "--cpu",
        "--save-dir",
        "saved",
    )


def test_questions(tmp_path):
    path = tmp_path / "train.questions.jsonl"
    path.write_text(Question("a", 1, [(0, 4)], (1, 2)).to_json() + "\n")
    checksums.write_checksums(tmp_path)
    assert len(read_questions(path, 1)) == 1
    path.write_text(path.read_text().replace("[1, 2]", "[1, 3]"))
    with pytest.raises(UserError, match=f"^{path} is damaged"):
        read_questions(path, 1)


@pytest.mark.parametrize("name", ["train.src", "train.tgt", "dev.src"])
def test_a_corpus(toy, call_command, refused, tmp_path, name):
    """Text that s2sft prepare has written, read by the next command."""
    squad(tmp_path / "raw")
    call_command("prepare", "squad_qg", "--raw", "raw", "--output", "corpus")
    flip(tmp_path / "corpus" / name)
    words = ("--tokenizer-dir", toy.folder, "--input", f"corpus/{name}", "--output-dir", "tokens", "--workers", 1)
    refused(f"corpus/{name}", "tokenize", *words)
    assert not (tmp_path / "tokens").exists()


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".parquet"])
def test_texts_with_fields(trained, toy, refused, tmp_path, suffix):
    path = tmp_path / f"texts{suffix}"
    path.write_bytes(b"as it was")
    checksums.write_checksums(tmp_path)
    path.write_bytes(b"changed")
    words = ("--path", trained("causal").best, "--tokenizer-dir", toy.folder, "--cpu", "--output", "out.txt")
    refused(path, "generate", *words, "--input", path)


def test_tokens(toy, call_command, refused, tmp_path):
    """Several runs write to one folder; each keeps the checksums of the others."""
    names = ("train.src", "train.tgt", "valid.src", "valid.tgt")
    words = ("--tokenizer-dir", toy.folder, "--output-dir", tmp_path / "tokens", "--workers", 1)
    for name in names:
        call_command("tokenize", *words, "--input", toy.raw / name, "--dict", tmp_path / "tokens" / "dict.txt")
    assert checksums.read_checksums(tmp_path / "tokens").keys() == {*names, "dict.txt"}
    preprocess = ("preprocess", "--source-lang", "src", "--target-lang", "tgt", "--srcdict", toy.dictionary)
    preprocess += (
        "--joined-dictionary",
        "--trainpref",
        "tokens/train",
        "--validpref",
        "tokens/valid",
        "--destdir",
        "data",
    )
    for name in names:
        whole = (tmp_path / "tokens" / name).read_bytes()
        flip(tmp_path / "tokens" / name)
        refused(f"tokens/{name}", *preprocess)
        (tmp_path / "tokens" / name).write_bytes(whole)
    call_command(*preprocess)


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
