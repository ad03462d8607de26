"""The command lines in preprocess/ that read a benchmark, each on small files in its raw format."""

import runpy
import sys
from pathlib import Path

import pytest
from raw_corpora import RAW, UNDERSTANDING

SCRIPTS = Path(__file__).resolve().parents[2] / "preprocess"
# Lines of each file, where they are others.
PAIRS = {"train": 12, "valid": 4, "dev": 4, "test": 4}
LINES = {
    "squad_qg": {**PAIRS, "train": 8},
    "e2e": {**PAIRS, "dev": 2, "test": 2},
    "multi30k": {**PAIRS, "test_2017_flickr": 3},
    "coqa": {"train": 12, "valid": 48, "dev": 12},
    "iwslt14": {"train": 67, "valid": 3, "dev": 3, "test": 10},
    "webnlg": {**PAIRS, "train": 24, "valid": 8},
}
FURTHER = {
    "gigaword": [("--size", "10k", "--seed", "3")],
    "multi30k": [("--source-lang", "de", "--target-lang", "en")],
    "squad_qg": [("--split", "reversed")],
    "wmt10": [("--from-english",)],
    "iwslt14": [("--from-english",)],
}


@pytest.mark.parametrize(("task", "options"), [(task, words) for task in RAW for words in [(), *FURTHER.get(task, [])]])
def test_raw_to_text(task, options, tmp_path, monkeypatch, capsys):
    RAW[task](tmp_path / "raw")
    language = ("--lang", "zh") if task == "xqg" else ()
    words = ["--raw", str(tmp_path / "raw"), "--output", str(tmp_path / "corpus"), *language, *options]
    monkeypatch.setattr(sys, "argv", [f"{task}.py", *words])
    runpy.run_path(str(SCRIPTS / f"{task}.py"), run_name="__main__")
    expected = LINES.get(task, PAIRS)
    assert (
        capsys.readouterr().out
        == f"{tmp_path / 'corpus'}: " + ", ".join(f"{k} {v}" for k, v in expected.items()) + "\n"
    )
    for name, lines in expected.items():
        side = "tgt" if name in ("train", "valid") else "refs.jsonl"
        for suffix in ("src", side):
            assert (tmp_path / "corpus" / f"{name}.{suffix}").read_bytes().count(b"\n") == lines


def test_every_script_is_tested():
    assert {path.stem for path in SCRIPTS.glob("*.py")} == {*RAW, *UNDERSTANDING, "docstrings"}


def prepare(task, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", [f"{task}.py", *map(str, words)])
    runpy.run_path(str(SCRIPTS / f"{task}.py"), run_name="__main__")


def test_fewer_pairs_than_are_drawn(tmp_path, monkeypatch, capsys):
    RAW["gigaword"](tmp_path / "raw")
    words = ("--raw", tmp_path / "raw", "--size")
    prepare("gigaword", monkeypatch, *words, "10k", "--output", tmp_path / "small")
    assert "--size 10k takes all 12 training pairs, for there are not 10,000" in capsys.readouterr().err
    prepare("gigaword", monkeypatch, *words, "full", "--output", tmp_path / "full")
    assert "training pairs" not in capsys.readouterr().err


def test_malformed_pairs_are_not_drawn(tmp_path, monkeypatch, capsys):
    """As many are taken as there should be, though some are left out."""
    lines = {side: [f"{side} {number}" for number in range(10_003)] for side in ("src", "tgt")}
    lines["tgt"][5] = lines["src"][7] = " "
    for split in ("train", "valid", "test"):
        for side in ("src", "tgt"):
            path = tmp_path / "raw" / f"{split}.{side}"
            path.parent.mkdir(exist_ok=True)
            path.write_text("".join(f"{line}\n" for line in lines[side][: None if split == "train" else 4]))
    words = ("--raw", tmp_path / "raw", "--output", tmp_path / "small", "--size", "10k", "--skip-malformed")
    prepare("gigaword", monkeypatch, *words)
    captured = capsys.readouterr()
    assert "train 10,000" in captured.out
    assert "left out 2 malformed records" in captured.err
