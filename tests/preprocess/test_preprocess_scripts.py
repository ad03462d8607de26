"""The command lines in preprocess/, in a temporary folder."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "preprocess"


@pytest.fixture
def call_script(monkeypatch, tmp_path, capsys) -> Callable[..., str]:
    """Run a script of preprocess/ within this process, in `tmp_path`, and return what it printed."""
    monkeypatch.chdir(tmp_path)

    def call(name: str, *words: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *words])
        runpy.run_path(str(SCRIPTS / name), run_name="__main__")
        return capsys.readouterr().out

    return call


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
