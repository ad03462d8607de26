"""``s2sft finetune``: its options; tests/recipes/test_finetune.py runs it."""

from pathlib import Path

import pytest

from s2sft_fairseq.commands import finetune


@pytest.fixture
def made(monkeypatch):
    """The parsed command line: files, fields, values of settings, and options of ``s2sft train``."""
    found = []

    class Finetuning(finetune.Finetuning):
        def __init__(self, files, fields, given, further, call):
            found.extend([files, fields, given, further])

        def run(self):
            pass

    monkeypatch.setattr(finetune, "Finetuning", Finetuning)
    return found


def test_options(call_command, made):
    words = ("--encoder", "E", "--train", "a.src", "a.tgt", "--valid", "v.jsonl", "--output", "O", "--source", "q", "p")
    words += ("--target", "t", "--lora-rank", 8, "--cpu", "--layout", "--source-segments 0,1", "--amp", "off")
    call_command("finetune", *words, "--", "--clip-norm", 2)
    files, fields, given, further = made
    assert files == {"train": [Path("a.src"), Path("a.tgt")], "valid": [Path("v.jsonl")], "test": []}
    assert (fields.source, fields.target) == (("q", "p"), "t")
    assert given == {
        "encoder": "E",
        "output": "O",
        "lora_rank": 8,
        "cpu": True,
        "layout": "--source-segments 0,1",
        "amp": "off",
    }
    assert further == ["--clip-norm", "2"]


def test_usual_fields(call_command, made):
    call_command("finetune", "--train", "a.jsonl")
    assert made[1] == (("src",), "tgt")


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        (
            ("--method", "deltalm", "--beam", 0, "--metric", "x"),
            [
                "--method must be one of causal, masked, pseudo_masked, infilling, blocks, but is deltalm",
                "--metric must be one of rouge-l, rouge-1, rouge-2, bleu, meteor, loss, but is x",
                "--beam must be a whole number of at least 1, but is 0",
            ],
        ),
        (
            ("--train", "a.txt", "--test", "b.tsv"),
            [
                "--output is needed: the folder to write",
                "--encoder must be a folder, a checkpoint, or a name on the Hugging Face hub, but is not given",
                "--train a.txt: no such file",
                "--train must be a .jsonl, .json, .tsv or .csv file, or two line-aligned files, but is a.txt alone",
                "--test b.tsv: no such file",
            ],
        ),
        (
            ("--encoder", "no/such/file"),
            ["or a name on the Hugging Face hub, but is no/such/file", "--train is needed"],
        ),
    ],
)
def test_mistakes(call_command, tmp_path, words, problems):
    printed = call_command("finetune", *words, status=2).stderr
    assert printed.startswith("error: ")
    assert [problem for problem in problems if problem not in printed] == []
    assert list(tmp_path.iterdir()) == []


def test_help(call_command):
    for words in ((), ("--help",)):
        printed = " ".join(call_command("finetune", *words).stdout.split())
        assert "--train FILE [FILE ...]" in printed and "--metric {rouge-l,rouge-1," in printed
        assert "(default: fits 99 % of them)" in printed
