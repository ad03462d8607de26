"""``s2sft prepare``: what it prints, and how it fails; tests/preprocess runs it for each benchmark."""

import pytest
from raw_corpora import squad, write

from s2sft_fairseq.recipes.benchmarks import BENCHMARKS


@pytest.fixture
def call(call_command):
    """Prepare SQuAD and return the exit status and both outputs."""

    def call_with(*words: object) -> tuple[int, str, str]:
        done = call_command("prepare", "squad_qg", *words, status=None)
        return done.status, done.stdout, done.stderr

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
        (("--raw", "file", "--output", "corpus"), "--raw must be a folder, but file is not one"),
    ],
)
def test_mistakes(tmp_path, call, words, problem):
    squad(tmp_path / "raw")
    write(tmp_path / "file", "")
    assert call(*words) == (2, "", f"error: {problem}\n")


def test_list_of_benchmarks(call_command):
    lines = call_command("prepare", "--list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [*BENCHMARKS, "docstrings"]
    (about,) = (line for line in lines if line.startswith("e2e "))
    assert "E2E NLG challenge:" in about and "DIR/{trainset,devset,testset_w_refs}.csv" in about
    assert "--size {full,10k}" in call_command("prepare", "gigaword", "--help").stdout


def test_no_or_an_unknown_benchmark(call_command):
    failed = call_command("prepare", status=2)
    assert f"needs the name of a benchmark: {', '.join(BENCHMARKS)}, docstrings\n" in failed.stderr
    assert "invalid choice: 'e3e'" in call_command("prepare", "e3e", status=2).stderr
