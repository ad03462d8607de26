"""What the command lines of preprocess/ print, and how they fail."""

import sys

import pytest
from raw_corpora import squad, write

from s2sft_fairseq.corpora.command_line import make_parser, run
from s2sft_fairseq.corpora.squad import read_squad


@pytest.fixture
def call(monkeypatch, capsys):
    """Run a command line on SQuAD and return its exit status and both of its outputs."""

    def call_with(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["squad_qg.py", *map(str, words)])
        status = 0
        try:
            run(make_parser("Text."), lambda options, malformed: read_squad(options.raw, malformed))
        except SystemExit as exit_:
            status = exit_.code
        return status, *capsys.readouterr()

    return call_with


def test_written(tmp_path, call):
    squad(tmp_path / "raw")
    status, out, err = call("--raw", tmp_path / "raw", "--output", tmp_path / "corpus", "--limit", 3)
    assert (status, err) == (0, "")
    assert out == f"{tmp_path / 'corpus'}: train 3, valid 3, dev 3, test 3\n"


def test_malformed_records(tmp_path, call):
    squad(tmp_path / "raw")
    path = tmp_path / "raw" / "train-v1.1.json"
    path.write_text(path.read_text().replace('"answer_start": 0', '"answer_start": 1', 1))
    listed = (
        f"{path}, article 'Tower', paragraph 1, question 1: the answer 'Tower' is not at character 1 of its passage"
    )
    words = ("--raw", tmp_path / "raw", "--output", tmp_path / "corpus")
    status, out, err = call(*words)
    assert (status, out) == (2, "")
    assert err == (f"error: 1 malformed records (1 in {path}); --skip-malformed leaves them out:\n  - {listed}\n")
    status, out, err = call(*words, "--skip-malformed")
    assert status == 0
    assert out.endswith("corpus: train 7, valid 4, dev 4, test 4\n")
    assert err == f"left out 1 malformed records (1 in {path}):\n  - {listed}\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            ("--raw", "raw", "--output", "raw"),
            "--output raw must be new or empty, but holds dev-v1.1.json.gz, doclist-test.txt, train-v1.1.json: "
            "remove it, or name another folder",
        ),
        (("--raw", "raw", "--output", "corpus", "--limit", "0"), "--limit must be at least 1, but is 0"),
        (("--raw", "file", "--output", "corpus"), "--raw must be a folder, but file is none"),
    ],
)
def test_mistakes(tmp_path, call, monkeypatch, words, problem):
    monkeypatch.chdir(tmp_path)
    squad(tmp_path / "raw")
    write(tmp_path / "file", "")
    assert call(*words) == (2, "", f"error: {problem}\n")
