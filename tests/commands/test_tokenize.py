"""``s2sft tokenize``: files of raw text or JSON lines to files of symbols."""

import gzip
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tokenizer_folders import SENTENCES, WRITERS, write_byte_level, write_wordpiece

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.data.text_files import read_lines
from s2sft_fairseq.tokenization import tokenize_files
from s2sft_fairseq.tokenization.folder import open_tokenizer


@pytest.fixture
def tokenize(call_command, tmp_path):
    """Run ``s2sft tokenize`` in `tmp_path` with a small WordPiece folder, or another one in ``tokenizer``."""
    write_wordpiece(tmp_path / "tokenizer")

    def run(*words: object, status: int = 0):
        return call_command("tokenize", "--tokenizer-dir", "tokenizer", "--output-dir", "out", *words, status=status)

    return run


def write(path: Path, *lines: object) -> Path:
    """Write lines of text, or anything else as JSON."""
    path.parent.mkdir(exist_ok=True)
    content = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def read(path: Path) -> list[str]:
    return path.read_bytes().decode().removesuffix("\n").split("\n")


def test_text_files_keep_their_names(tokenize, tmp_path):
    write(tmp_path / "raw" / "train.src", "The quick", "", "中x\u2028\r")
    write(tmp_path / "raw" / "train.tgt.gz", "a", "b", "tokenization")
    done = tokenize("--input", "raw/train.src", "raw/train.tgt.gz")
    assert read(tmp_path / "out" / "train.src") == ["the quick", "", "[UNK] x"]
    assert read(tmp_path / "out" / "train.tgt") == ["a", "b", "token ##ization"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["SHA256SUMS", "train.src", "train.tgt"]
    assert "out/train.src: 3 lines; pieces a line: mean 1.3, 95 % have at most 2, longest 2; 1 unknown" in done.stdout
    assert done.stderr == ""


def test_dictionary(tokenize, tmp_path):
    """For models that are trained from random weights: the ids of the tokenizer's vocabulary."""
    write(tmp_path / "train.txt", "The quick")
    done = tokenize("--input", "train.txt", "--dict", "new/dict.txt")
    symbols = read(tmp_path / "tokenizer" / "vocab.txt")
    assert PretrainedDictionary.load(str(tmp_path / "new" / "dict.txt")).symbols == symbols
    assert f"new/dict.txt: {len(symbols)} symbols" in done.stdout
    tokenize("--input", "train.txt", "--dict", "dict.txt")
    assert (tmp_path / "dict.txt").read_bytes() == (tmp_path / "new" / "dict.txt").read_bytes()


def test_json_lines_of_text_and_tokens(tokenize, tmp_path):
    lines = [{"src": "The\nquick", "tgt": ["a", "##b"], "id": 1}, {"src": [], "tgt": "token\r\nization"}]
    write(tmp_path / "train.jsonl", *lines)
    write(tmp_path / "test.jsonl.gz", *({"src": line["src"]} for line in lines))
    tokenize("--input", "train.jsonl")
    assert read(tmp_path / "out" / "train.src") == ["the quick", ""]
    assert read(tmp_path / "out" / "train.tgt") == ["a ##b", "token i ##z ##a ##t ##i ##o ##n"]
    tokenize("--input", "test.jsonl.gz", "--source", "src")
    assert read(tmp_path / "out" / "test.src") == ["the quick", ""]
    assert not (tmp_path / "out" / "test.tgt").exists()


@pytest.mark.parametrize("name", ["pairs.json", "pairs.json.gz"])
def test_json_lines_with_the_names_of_the_s2s_ft_program(tokenize, tmp_path, name):
    content = json.dumps({"src": "the token", "tgt": "a"}) + "\n"
    (tmp_path / name).write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
    tokenize("--input", name)
    assert read(tmp_path / "out" / "pairs.src") == ["the token"]
    assert read(tmp_path / "out" / "pairs.tgt") == ["a"]


def test_fields_are_joined(tokenize, tmp_path):
    fields = {"passage": ["the a", "b", ""], "answer": ["a", "", ""], "question": ["what", "x", "y"]}
    for name, lines in fields.items():
        write(tmp_path / f"train.{name}", *lines)
    write(
        tmp_path / "valid.jsonl", *(dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True))
    )
    inputs = ["--input", *(f"train.{name}" for name in fields), "valid.jsonl"]
    tokenize(*inputs, "--source", "passage", "answer", "--target", "question")
    for split in ("train", "valid"):
        assert read(tmp_path / "out" / f"{split}.src") == ["the a [SEP] a", "b [SEP]", "[SEP]"]
        assert read(tmp_path / "out" / f"{split}.tgt") == ["w ##h ##a ##t", "x", "y"]


def test_raw_text_is_split_at_a_separator(tokenize, tmp_path):
    write_byte_level(tmp_path / "bpe")
    write(tmp_path / "raw" / "train.src", "the dog [SEP] fox", "the [SEP]  [SEP] dog", "dog")
    tokenizer = open_tokenizer(tmp_path / "bpe")
    tokenize("--tokenizer-dir", "bpe", "--input", "raw/train.src", "--separator", " [SEP] ")
    the, dog, fox = map(tokenizer.encode, ("the", "dog", "fox"))
    assert read(tmp_path / "out" / "train.src") == [
        f"{tokenizer.encode('the dog')} </s> {fox}",
        f"{the} </s> </s> {dog}",
        dog,
    ]


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.process
def test_any_number_of_workers_gives_the_same(tokenize, tmp_path, monkeypatch, name):
    monkeypatch.setattr(tokenize_files, "CHUNK_LINES", 10)
    WRITERS[name](tmp_path / "own")
    texts = [f"{number} {SENTENCES[number % 4]}" for number in range(95)]
    write(tmp_path / "a.jsonl", *({"src": text, "tgt": text[::-1]} for text in texts))
    write(tmp_path / "raw" / "a.txt", *texts)
    found = []
    for workers in (1, 2, 3):
        done = tokenize("--tokenizer-dir", "own", "--input", "a.jsonl", "raw/a.txt", "--workers", workers)
        statistics = [line for line in done.stdout.splitlines() if line.startswith("out/")]
        found.append(
            (statistics, *((tmp_path / "out" / output).read_bytes() for output in ("a.src", "a.tgt", "a.txt")))
        )
    assert len(found[0][0]) == 3
    assert found[0] == found[1] == found[2]
    assert read(tmp_path / "out" / "a.src") == open_tokenizer(tmp_path / "own").encode_batch(texts)
    assert (tmp_path / "out" / "a.src").read_bytes() == (tmp_path / "out" / "a.txt").read_bytes()


def test_all_mistakes_in_texts_are_reported_and_nothing_is_written(tokenize, tmp_path):
    write(tmp_path / "train.src", "a", "b", "c")
    (tmp_path / "train.tgt").write_bytes(b"c\n\xff\n")
    (tmp_path / "x.src.gz").write_bytes(b"no gzip")
    (tmp_path / "y.src.gz").write_bytes(gzip.compress(b"a\n" * 99)[:-9])
    done = tokenize("--input", "train.tgt", "train.src", "valid.src", "x.src.gz", "y.src.gz", status=2)
    assert done.stderr.startswith("error: nothing was written:\n")
    assert "train.tgt: 1 line(s) are not valid UTF-8: line 2" in done.stderr
    assert "must have equally many lines, but train.src has 3, train.tgt has 2" in done.stderr
    assert "valid.src: cannot be read: No such file or directory" in done.stderr
    assert "x.src.gz: cannot be read: Not a gzipped file" in done.stderr
    assert "y.src.gz: cannot be read: Compressed file ended" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", [" a.src", "a\nb.src", "a\\b", "a\x85b", " ", ".gz", "\udcff.src"], ids=ascii)
def test_names_of_every_kind_can_be_read_again(tokenize, tmp_path, name):
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / name).write_text("The quick\n")
    tokenize("--input", f"raw/{name}")
    assert list(read_lines(tmp_path / "out" / name)) == ["the quick"]
    tokenize("--input", f"raw/{name}")  # again, into a folder with checksums


@pytest.mark.parametrize("name", [".lock", "SHA256SUMS", ".a.12-0123abcd.tmp", ".lock.gz"])
def test_names_of_other_files_of_the_folder(tokenize, tmp_path, name):
    write(tmp_path / "raw" / name, "The quick")
    assert f"--input raw/{name} must have another name" in tokenize("--input", f"raw/{name}", status=2).stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("dictionary", ["out/.lock", "out/SHA256SUMS", "out/a.src"])
def test_a_dictionary_that_would_replace_another_file(tokenize, tmp_path, dictionary):
    write(tmp_path / "a.src", "The quick")
    assert "--dict" in tokenize("--input", "a.src", "--dict", dictionary, status=2).stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.process)])
def test_all_mistakes_in_json_are_reported_and_nothing_is_written(tokenize, tmp_path, monkeypatch, workers):
    monkeypatch.setattr(tokenize_files, "CHUNK_LINES", 5)
    wrong = ["{", [1], {"tgt": "a"}, {"src": 3, "tgt": ["a", 1]}, {"src": ["a", "nose", "nose"], "tgt": "\ud800"}, ""]
    right = {"src": "a", "tgt": "b"}
    write(tmp_path / "train.jsonl", *[right] * 6, *wrong, *[right] * 6, *["{"] * 12)
    (tmp_path / "latin.jsonl").write_bytes('{"src": "é", "tgt": ""}\n'.encode("latin-1"))
    write(tmp_path / "empty.jsonl")
    write(tmp_path / "good.src", "a")
    inputs = ("train.jsonl", "latin.jsonl", "empty.jsonl", "no.jsonl", "good.src")
    done = tokenize("--input", *inputs, "--workers", workers, status=2)
    reported = "19, 20, 21, 22, 23, 24, 25, 26, ..."
    assert done.stderr.splitlines() == [
        "error: nothing was written:",
        f"  - train.jsonl: 14 line(s) are not valid JSON: line 7, 12, {reported}",
        "  - train.jsonl: 1 line(s) are not a JSON object: line 8",
        '  - train.jsonl: 1 line(s) lack "src": line 9',
        '  - train.jsonl: 1 line(s) have a "src" that is neither text nor a list of tokens: line 10',
        '  - train.jsonl: 1 line(s) have a "tgt" that is neither text nor a list of tokens: line 10',
        "  - train.jsonl: 1 line(s) have in \"src\" the token 'nose', which is not in the vocabulary: line 11",
        '  - train.jsonl: 1 line(s) have half of a surrogate pair in "tgt": line 11',
        "  - latin.jsonl: 1 line(s) are not valid UTF-8: line 1",
        "  - empty.jsonl: is empty, at least one line is needed",
        "  - no.jsonl: cannot be read: No such file or directory",
    ]
    assert not (tmp_path / "out").exists()


def test_a_list_of_sentences_is_not_accepted_as_tokens(tokenize, tmp_path):
    lines = [{"src": ["The quick fox .", "A dog ."], "tgt": "a"}, {"src": ["a", " ##b", "nose"], "tgt": "a"}]
    write(tmp_path / "train.jsonl", *lines, {"src": ["One sentence\n"], "tgt": "a"})
    assert tokenize("--input", "train.jsonl", status=2).stderr.splitlines()[1:] == [
        '  - train.jsonl: 2 line(s) have a "src" that is a list of texts, not one text or the list of its tokens: '
        "line 1, 3",
        "  - train.jsonl: 1 line(s) have in \"src\" the token ' ##b', which is not in the vocabulary: line 2",
        "  - train.jsonl: 1 line(s) have in \"src\" the token 'nose', which is not in the vocabulary: line 2",
    ]


def test_only_some_of_many_kinds_of_mistakes_are_shown(tokenize, tmp_path):
    write(tmp_path / "train.jsonl", {"src": [f"token{number}" for number in range(15)], "tgt": "a"})
    stderr = tokenize("--input", "train.jsonl", status=2).stderr
    assert stderr.count("which is not in the vocabulary") == 10
    assert "train.jsonl: 5 further kinds of mistakes" in stderr


def test_options_that_do_not_fit(tokenize, tmp_path):
    for name in ("raw/a.src", "other/a.src", "raw/a.passage", "raw/a.extra"):
        write(tmp_path / name, "a")
    done = tokenize(
        *("--input", "raw/a.src", "other/a.src", "--output-dir", "raw", "--target", "x", "--workers", 0),
        *("--separator", ""),
        status=2,
    )
    for text in (
        "--workers must be at least 1, but is 0",
        "--separator must be a text, but is empty",
        "--target x needs --source, the fields of the line-aligned files",
        "--output-dir raw holds the input raw/a.src itself; give another folder",
        "--input needs files of different names, but raw/a.src would be written of raw/a.src and other/a.src",
    ):
        assert text in done.stderr
    fields = ("--source", "passage", "answer", "--target", "passage")
    done = tokenize("--input", "raw/a.passage", "raw/a.extra", *fields, status=2)
    assert "--source and --target name passage twice" in done.stderr
    assert "--input raw/a.extra: none of the fields passage, answer" in done.stderr
    assert "--input needs a file for each field of raw/a, but lacks raw/a.answer" in done.stderr
    assert (tmp_path / "raw" / "a.src").read_text() == "a\n"


def test_a_folder_without_a_tokenizer(tokenize, tmp_path):
    write(tmp_path / "a.src", "a")
    done = tokenize("--tokenizer-dir", "./nowhere", "--input", "a.src", status=2)
    assert done.stderr == "error: tokenizer folder nowhere does not exist\n"


def test_a_former_output_stays_until_the_new_one_is_complete(tokenize, tmp_path, monkeypatch):
    write(tmp_path / "a.src", "a")
    former = write(tmp_path / "out" / "a.src", "former")

    def fail(*_):
        raise OSError(28, "No space left on device", "out/a.src")

    with monkeypatch.context() as patch:
        patch.setattr(tokenize_files, "_tokenize", fail)
        tokenize("--input", "a.src", status=2)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["a.src"]
    assert read(former) == ["former"]
    tokenize("--input", "a.src")
    assert read(former) == ["a"]


def test_interrupted(start_command, tmp_path):
    write_wordpiece(tmp_path / "tokenizer")
    write(tmp_path / "many.src", *[SENTENCES[0] * 10] * 50_000)
    options = ("--tokenizer-dir", "tokenizer", "--input", "many.src", "--output-dir", "out", "--workers", 2)
    process = start_command("tokenize", *options)
    deadline = time.monotonic() + 120
    while not any(path.stat().st_size for path in tmp_path.glob("out/.many.src.*.tmp")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "s2sft tokenize: interrupted"
    assert "Traceback" not in stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("name", "line"), [("a.src", "the quick"), ("a.src.gz", "the quick"), ("a.jsonl", {"src": "the quick", "tgt": "a"})]
)
@pytest.mark.process
def test_pipes(tokenize, tmp_path, name, line):
    write(tmp_path / "raw" / name, *[line] * 3)
    os.mkfifo(tmp_path / name)
    with subprocess.Popen(["bash", "-c", f"cat raw/{name} >{name}"], cwd=tmp_path):
        tokenize("--input", name)
    assert read(tmp_path / "out" / "a.src") == ["the quick"] * 3


def test_a_pipe_without_a_name(tokenize, tmp_path):
    reading, writing = os.pipe()
    os.write(writing, b"a\n")
    os.close(writing)
    done = tokenize("--input", f"/dev/fd/{reading}", status=2)
    os.close(reading)
    assert done.stderr.startswith(f"error: --input /dev/fd/{reading}: ") and "mkfifo" in done.stderr
    assert not (tmp_path / "out").exists()
