"""A command that is killed at any move of a file leaves complete files, and the same command then writes the rest."""

import shutil

import pytest
from faults import killed_at_move
from raw_corpora import squad

from s2sft_fairseq import cli
from s2sft_fairseq.recipes.engine import Stages

COMMANDS = {
    "tokenize": "--tokenizer-dir {toy} --input {raw}/train.src {raw}/train.tgt --output-dir {out} --workers 1",
    "preprocess": "--only-source --srcdict {toy}/dict.txt --trainpref {raw}/train.src --workers 1 --destdir {out}",
    "span-vocab": "--tokenizer-dir {toy} --input {raw}/train.src --output {out}/spans.txt --min-count 1 --workers 1",
    "prepare": "squad_qg --raw squad --output {out}",
    "export": "{best} --tokenizer-dir {toy} --to {out}",
    "evaluate": "--task rouge --hyp {raw}/train.src --ref {raw}/train.src --json {out}/scores.json",
}
SINGLE_FILES = ("span-vocab", "evaluate")  # they may leave a temporary file, which may be that of another process


def contents(folder):
    """The files of a folder, without logs, which have times, and without hidden files, which are temporary."""
    files = {path.relative_to(folder): path for path in folder.rglob("*") if path.is_file() and path.suffix != ".log"}
    return {name: path.read_bytes() for name, path in files.items() if not name.parts[0].startswith(".")}


@pytest.mark.process
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command(name, toy, trained, call_command, tmp_path):
    best, out = trained("pseudo_masked").best, tmp_path / "out"
    squad(tmp_path / "squad")
    words = [name, *COMMANDS[name].format(toy=toy.folder, raw=toy.raw, best=best, out=out).split()]
    call_command(*words)
    whole, moves = contents(out), 1
    shutil.rmtree(out)
    while killed_at_move(moves, lambda: cli.main(words)):
        kept = contents(out) if out.exists() else {}
        assert all(kept[path] == whole[path] for path in kept), moves
        moves += 1
    assert moves > 1 and contents(out) == whole
    if name not in SINGLE_FILES:
        assert not [path for folder in (tmp_path, out) for path in folder.glob(".*")]


@pytest.mark.process
def test_a_stage(tmp_path):
    def make(folder):
        folder.mkdir()
        for name in ("one", "two"):
            (folder / "half").write_text(name)
            (folder / "half").rename(folder / name)

    stages, moves = Stages("test", tmp_path / "log", cli.call), 1
    while killed_at_move(moves, lambda: stages.stage(tmp_path / "made", "make", make)):
        assert not (tmp_path / "made").exists(), moves
        moves += 1
    assert moves == 4 and [path.name for path in tmp_path.iterdir()] == ["made"]
    assert {path.name: path.read_text() for path in (tmp_path / "made").iterdir()} == {"one": "one", "two": "two"}
