"""The scripts of preprocess/ and others that run a command, and docstrings as a corpus."""

import runpy
import sys
from pathlib import Path

import pytest

from s2sft_fairseq import cli
from s2sft_fairseq.recipes.benchmarks import BENCHMARKS

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {
    **{f"preprocess/{name}.py": ("prepare", name) for name in [*BENCHMARKS, "docstrings"]},
    "scripts/average_checkpoints.py": ("average",),
    "scripts/pretrain.py": ("pretrain",),
}


@pytest.mark.parametrize(("path", "words"), SCRIPTS.items())
def test_scripts_are_commands(path, words, monkeypatch):
    run = []

    def main(arguments):
        run.append(arguments)
        return len(run) - 1

    monkeypatch.setattr(cli, "main", main)
    monkeypatch.setattr(sys, "argv", [path, "--raw", "x"])
    runpy.run_path(str(ROOT / path), run_name="__main__")
    with pytest.raises(SystemExit, match=r"^1$"):  # the exit status of the command
        runpy.run_path(str(ROOT / path), run_name="__main__")
    assert run == [[*words, "--raw", "x"]] * 2


def test_every_script_is_tested():
    assert {f"preprocess/{path.name}" for path in (ROOT / "preprocess").glob("*.py")} < set(SCRIPTS)


def test_docstrings(call_command, tmp_path, monkeypatch):
    package = tmp_path / "path" / "tiny_scripted_package"
    package.mkdir(parents=True)
    for number, word in enumerate(("one", "two", "three", "four", "five", "six", "seven", "eight")):
        body = f"This text below it tells in more words what the thing {word} is, and what for."
        (package / f"part{number}.py").write_text(f"'''Explain the thing {word}.\n\n{body}\n'''\n")
    monkeypatch.syspath_prepend(tmp_path / "path")
    words = ["--packages", "tiny_scripted_package", "--valid-share", "0.3", "--test-share", "0.3"]
    printed = call_command("prepare", "docstrings", "--output", "corpus", *words).stdout
    written = {path.name: path.read_bytes() for path in (tmp_path / "corpus").iterdir()}
    assert set(written) == {f"{split}.{side}" for split in ("train", "valid", "test") for side in ("src", "tgt")} | {
        "README.md",
        "stats.json",
    }
    assert sum(text.count(b"\n") for name, text in written.items() if name.endswith(".tgt")) == 8
    assert "pairs: {'train':" in printed
    assert "wrote corpus/{train,valid,test}.{src,tgt}, README.md and stats.json" in printed

    call_command("prepare", "docstrings", "--output", "again", *words)
    assert {path.name: path.read_bytes() for path in (tmp_path / "again").iterdir()} == written
