"""``s2sft generate``: binarized data or raw text as its input, and the options of raw text."""

import pytest
from exported import write_model_folder

from s2sft_fairseq.commands import fairseq_command, generate


def test_binarized_data_are_left_to_fairseq(monkeypatch):
    given = []
    monkeypatch.setattr(fairseq_command, "run", lambda *words: given.append(words))
    generate.main(["data", "--path", "x.pt", "--beam", "2"])
    assert given == [("generate", ["data", "--path", "x.pt", "--beam", "2"])]


def test_help_shows_the_options_of_both(call_command):
    shown = call_command("generate", "--help").stdout
    for option in ("data", "--beam", "--length-penalty", "--num-shards", "--seed", "--bf16", "--tokenizer-dir"):
        assert option in shown
    for option in ("--input", "--output", "--overwrite", "--source", "--separator", "--buffer-size"):
        assert f"  {option}" in shown
    assert shown.count("--tokenizer-dir TOKENIZER_DIR\n") == 1


VERBS = ("generate", "interactive", "validate")
COMPLETE = ("--path", "x.pt", "--tokenizer-dir", "./encoder", "--input", "in.txt", "--output", "out.txt")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (COMPLETE[:-2], "--input in.txt needs --output, the file to write"),
        ((*COMPLETE[:4], "--output=out.txt"), "--output out.txt needs --input, the raw text"),
        (COMPLETE[2:], "--path is needed: the checkpoint file"),
        ((*COMPLETE[:2], *COMPLETE[4:]), "--tokenizer-dir is needed: the folder of the converted encoder"),
        (("data", *COMPLETE), "DATA is for binarized data and must be left out with --input, but is data"),
        ((*COMPLETE, "--prefix-size", "2"), "--prefix-size is for binarized data and must be left out with --input"),
        ((*COMPLETE, "--score-reference"), "--score-reference is for binarized data and must be left out"),
        ((*COMPLETE, "--results-path", "x"), "--results-path is for binarized data and must be left out"),
        ((*COMPLETE, "--tokenizer", "moses"), "--tokenizer is for binarized data and must be left out"),
        ((*COMPLETE, "--post-process"), "--post-process is for binarized data and must be left out"),
        ((*COMPLETE, "--bpe", "fastbpe"), "--bpe must be pretrained with --input, or left out, but is fastbpe"),
        (
            ("--task", "translation", *COMPLETE),
            "--task must be unilm_seq2seq or deltalm_seq2seq for --input, but is translation",
        ),
        ((*COMPLETE, "--source", "a"), "--source names fields of .jsonl and .parquet files, but --input is in.txt"),
        ((*COMPLETE, "--separator", ""), "--separator must be a text, but is empty"),
        ((*COMPLETE, "--buffer-size", "0"), "--buffer-size must be a whole number from 1 to 2147483647, but is 0"),
        (
            (*COMPLETE, "--num-shards", "2", "--shard-id", "2"),
            "--shard-id must be at least 0 and below --num-shards (2)",
        ),
        ((*COMPLETE, "--nbest", "2"), "--nbest 2 needs an --output that ends in .jsonl, but it is out.txt"),
        ((*COMPLETE, "--all-ended"), "--all-ended needs an --output that ends in .jsonl, but it is out.txt"),
        (
            (*COMPLETE, "--engine", "ray", "--all-ended"),
            "--all-ended needs --output-format jsonl, but it is txt",
        ),
        (("data", "--path", "x.pt", "--all-ended"), "--all-ended needs --input, raw text, and an --output that ends"),
        ((*COMPLETE, "--output", "out.gz"), "--output must not end in .gz, for it is not compressed, but is out.gz"),
        ((*COMPLETE, "--output", "in.txt"), "--output must be another file than --input, but both are in.txt"),
        ((*COMPLETE, "--output", "."), "--output must be a file, but . is a folder"),
        ((*COMPLETE, "--input", "/"), "--input must be a file, but / is a folder"),
        ((*COMPLETE, "--fp16", "--bf16"), "--fp16 and --bf16 exclude each other"),
    ],
)
def test_options_that_do_not_fit(call_command, words, problem):
    stderr = call_command("generate", *words, status=2).stderr
    assert f"error: {problem}" in stderr or f"\n  - {problem}" in stderr


def test_all_problems_are_named_at_once(call_command):
    stderr = call_command("generate", "data", "--input", "in.txt", "--buffer-size", 0, "--nbest", 2, status=2).stderr
    assert stderr.startswith("error: 5 problems:\n")


@pytest.mark.parametrize(
    ("name", "output"), [("in.txt", "out.txt"), ("in.jsonl", "out.jsonl"), ("in.txt", "new/out.txt")]
)
def test_an_empty_file_has_an_empty_output(call_command, tmp_path, name, output):
    write_model_folder(tmp_path / "model")
    (tmp_path / name).touch()
    call_command("generate", "--path", tmp_path / "model", "--input", tmp_path / name, "--output", tmp_path / output)
    assert (tmp_path / output).read_bytes() == b""


@pytest.mark.parametrize("path", ["./nothing", "/no/model"])
def test_a_model_that_is_not_there_is_said_first(call_command, path):
    for words in (("generate", "--input", "a.txt", "--output", "b"), *((name, "data") for name in VERBS)):
        line = call_command(*words, "--path", path, status=2).stderr.splitlines()[-1]
        assert line.startswith(f"error: Model file not found: {path} (--path)")
