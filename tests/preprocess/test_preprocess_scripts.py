"""The command lines in preprocess/, in a temporary folder."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from s2sft_fairseq.errors import UserError

SCRIPTS = Path(__file__).resolve().parents[2] / "preprocess"
VOCAB = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "c"]


@pytest.fixture
def call_script(monkeypatch, tmp_path, capsys) -> Callable[..., str]:
    """Run a script of preprocess/ within this process, in `tmp_path`, and return what it printed."""
    monkeypatch.chdir(tmp_path)

    def call(name: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *words])
        runpy.run_path(str(SCRIPTS / name), run_name="__main__")
        return capsys.readouterr().out

    return call


@pytest.fixture
def raw(tmp_path) -> Path:
    folder = tmp_path / "raw"
    folder.mkdir()
    (folder / "train.src").write_text("A ab\n\nc\n")
    (folder / "train.tgt").write_text("c\na\nx\n")
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    return folder


def test_docstrings(call_script, tmp_path, monkeypatch):
    package = tmp_path / "path" / "tiny_scripted_package"
    package.mkdir(parents=True)
    for number, word in enumerate(("one", "two", "three", "four", "five", "six", "seven", "eight")):
        body = f"This text below it tells in more words what the thing {word} is, and what for."
        (package / f"part{number}.py").write_text(f"'''Explain the thing {word}.\n\n{body}\n'''\n")
    monkeypatch.syspath_prepend(tmp_path / "path")
    words = ["--packages", "tiny_scripted_package", "--valid-share", "0.3", "--test-share", "0.3"]
    printed = call_script("docstrings.py", "--output", "corpus", *words)
    written = {path.name: path.read_bytes() for path in (tmp_path / "corpus").iterdir()}
    assert set(written) == {f"{split}.{side}" for split in ("train", "valid", "test") for side in ("src", "tgt")} | {
        "README.md",
        "stats.json",
    }
    assert sum(text.count(b"\n") for name, text in written.items() if name.endswith(".tgt")) == 8
    assert "pairs: {'train':" in printed
    assert "wrote corpus/{train,valid,test}.{src,tgt}, README.md and stats.json" in printed

    call_script("docstrings.py", "--output", "again", *words)
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == written


def test_tokenize_text(call_script, tmp_path, raw):
    words = ["--input", "raw/train.src", "raw/train.tgt", "--output-dir", "tokens"]
    printed = call_script("tokenize_text.py", "--vocab", "vocab.txt", "--lower", *words)
    assert (tmp_path / "tokens" / "train.src").read_text() == "a a ##b\n\nc\n"
    assert (tmp_path / "tokens" / "train.tgt").read_text() == "c\na\n[UNK]\n"
    assert "tokens/train.tgt: 3 lines; pieces a line: mean 1.0" in printed
    assert "1 unknown words" in printed


def test_all_problems_of_the_input_are_reported_and_nothing_is_written(call_script, tmp_path, raw):
    (raw / "train.tgt").write_bytes(b"c\n\xff\n")
    words = ["--input", "raw/train.tgt", "raw/train.src", "raw/valid.src", "--output-dir", "tokens"]
    with pytest.raises(UserError) as caught:
        call_script("tokenize_text.py", "--vocab", "vocab.txt", "--lower", *words)
    text = str(caught.value)
    assert "raw/train.tgt: 1 line(s) are not valid UTF-8: line 2" in text
    assert "must have equally many lines, but raw/train.tgt has 2, raw/train.src has 3" in text
    assert "raw/valid.src: cannot be read: No such file or directory" in text
    assert not (tmp_path / "tokens").exists()


def test_the_input_is_not_written_over(call_script, tmp_path, raw):
    other = tmp_path / "other"
    other.mkdir()
    (other / "train.src").write_text("c\n")
    words = ["--input", "raw/train.src", "other/train.src", "--output-dir", "raw"]
    with pytest.raises(UserError) as caught:
        call_script("tokenize_text.py", "--vocab", "vocab.txt", "--lower", *words)
    assert "--output-dir raw holds the input raw/train.src itself" in str(caught.value)
    assert "--input needs files of different names, found other/train.src and raw/train.src" in str(caught.value)
    assert (raw / "train.src").read_text() == "A ab\n\nc\n"


def test_the_case_must_be_chosen(call_script, capsys, raw):
    words = ["--vocab", "vocab.txt", "--input", "raw/train.src", "--output-dir", "tokens"]
    with pytest.raises(SystemExit):
        call_script("tokenize_text.py", *words)
    assert "one of the arguments --lower --cased is required" in capsys.readouterr().err


def test_a_mistake_is_told_without_a_traceback(run_process, raw):
    script = SCRIPTS / "tokenize_text.py"
    words = ["--lower", "--input", "raw/train.src", "--output-dir", "tokens"]
    failed = run_process(sys.executable, script, "--vocab", "nowhere.txt", *words, status=1)
    assert failed.stderr.rstrip().endswith("error: nowhere.txt: cannot be read: No such file or directory")
    assert "Traceback" not in failed.stderr
