"""`s2sft plot`: the command line of every kind of picture. The pictures are tested in `tests/plots`."""

import json

import pytest

UPDATE = {"epoch": 1, "loss": "9.5", "wps": "210", "num_updates": "10", "lr": "7.5e-05", "gnorm": "4"}


@pytest.fixture
def log(tmp_path):
    (tmp_path / "train.log").write_text(json.dumps(UPDATE))


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_training(call_command, log, tmp_path, ending):
    done = call_command("plot", "training", ".", "train.log", "--output", f"curves.{ending}")
    assert done.stdout == f"plot: wrote curves.{ending} and curves.csv\n"
    assert (tmp_path / f"curves.{ending}").stat().st_size and "9.5" in (tmp_path / "curves.csv").read_text()


def test_training_mistakes(call_command, log):
    """All at once."""
    said = call_command("plot", "training", *["nowhere"] * 13, "--output", "curves.gif", status=2).stderr
    for stated in ("nowhere does not exist", "curves.gif", "at most 12", "13 are given"):
        assert stated in said


def test_lengths(call_command, tiny_data, tmp_path):
    words = ["--split", "valid", "--max-source-positions", 8, "--output", "lengths.png"]
    done = call_command("plot", "lengths", tiny_data, *words)
    assert "plot: 10 sources: median" in done.stdout and "plot: wrote lengths.png and lengths.csv" in done.stdout
    assert (tmp_path / "lengths.csv").read_text().startswith("side,positions,texts,cut\n")


def test_lengths_of_text_files(call_command, tiny_corpus, tiny_parts):
    files = [tiny_corpus / "valid.src", tiny_corpus / "valid.tgt"]
    done = call_command("plot", "lengths", *files, "--encoder", tiny_parts / "encoder", "--output", "lengths.png")
    assert "10 targets" in done.stdout


def test_lengths_mistakes(call_command):
    words = ["a", "b", "c", "--max-target-positions", "1", "--output", "lengths.txt"]
    said = call_command("plot", "lengths", *words, status=2).stderr
    for stated in ("--max-target-positions must be at least 2, but is 1", "3 are given", "lengths.txt"):
        assert stated in said


def test_attention(call_command, tiny_parts, tmp_path):
    words = ["--source", "a b", "--target", "b a", "--layer", "0", "--head", "1", "--output", "attention.png"]
    done = call_command("plot", "attention", tiny_parts / "model", *words)
    assert "plot: wrote attention.png and attention.csv" in done.stdout
    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")


def test_attention_mistakes(call_command):
    said = call_command(
        "plot", "attention", "./x", "--source", " ", "--target", "b", "--output", "a.txt", status=2
    ).stderr
    assert "--source has no words" in said and "a.txt" in said
