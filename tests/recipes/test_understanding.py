"""The recipes of understanding from raw files to scores, with a tiny random model."""

import json

import pytest
from called import call
from raw_corpora import UNDERSTANDING

SMOKE = ("--raw", "raw", "--smoke", "--cpu", "--workers", 1, "--output", "out")


def stages(done, task):
    lines = [line.removeprefix(f"{task}: ") for line in done.stdout.splitlines() if line.endswith(" ...")]
    return [line.removesuffix(" ...") for line in lines]


@pytest.mark.parametrize(
    ("task", "words", "expected", "files", "metric"),
    [
        (
            *("glue", ("--glue-task", "mnli")),
            ["prepare", "convert", "tokenize", "binarize", "train, 4 updates", "plot"]
            + [f"predict {name}" for name in ("test", "test1", "test2", "valid", "valid1")],
            *({"MNLI-m.tsv": 4, "MNLI-mm.tsv": 4, "AX.tsv": 3, "valid.tsv": 5, "valid1.tsv": 5}, "accuracy"),
        ),
        (
            *("squad", ("--version", "2.0", "--max-source", 24, "--max-query", 10, "--stride", 5)),
            ["convert", "prepare", "binarize", "train, 4 updates", "plot", "predict"],
            *({"answers.json": 1, "null_odds.json": 1}, "best F1"),
        ),
    ],
)
@pytest.mark.process
def test_smoke(tmp_path, task, words, expected, files, metric):
    UNDERSTANDING[task](tmp_path / "raw")
    done = call(tmp_path, "recipe", task, *SMOKE, *words)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert sorted(stages(done, task)) == sorted(expected)
    work = tmp_path / "out" / "seed1"
    assert {name: (work / name).read_text().count("\n") for name in files} == files
    assert metric in (work / "valid.scores").read_text()
    assert json.loads((work / "valid.json").read_text())["systems"]
    again = call(tmp_path, "recipe", task, *SMOKE, *words)
    assert again.returncode == 0, again.stderr
    assert stages(again, task) == []
    other = call(tmp_path, "recipe", task, *SMOKE, *words, "--lr", 1)
    assert "  lr: before 2e-5, now 1" in other.stderr


@pytest.mark.parametrize(
    ("task", "words", "expected"),
    [
        (
            *("glue", ("--glue-task", "sts-b")),
            "--task unilm_classification --pretrained recipes-out/glue-sts-b/encoder --max-source-positions 128 "
            "--regression --best-checkpoint-metric pearson",
        ),
        (
            *("squad", ("--version", "2.0")),
            "--task unilm_question_answering --pretrained recipes-out/squad-v2.0/encoder "
            "--best-checkpoint-metric accuracy",
        ),
    ],
)
def test_settings(tmp_path, task, words, expected):
    """The settings of UniLMv2's Table 9."""
    done = call(tmp_path, "recipe", task, "--dry-run", "--updates", 1000, *words)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout
    for option in ("--lr 2e-5", "--warmup-updates 100", "--max-update 1000", "--weight-decay 0.01", "--update-freq 2"):
        assert f" {option} " in done.stdout


@pytest.mark.parametrize(
    ("task", "words", "problems"),
    [
        ("glue", (), ["--raw is needed: the folder of the raw files"]),
        ("glue", ("--dry-run", "--glue-task", "ax"), ["--glue-task must be one of cola, sst-2, mrpc,", "but is ax"]),
        ("squad", ("--dry-run", "--version", "3"), ["--version must be one of 1.1, 2.0, but is 3"]),
        ("squad", ("--method", "causal"), ["--method"]),
        ("squad", ("--dry-run",), ["--dry-run needs --updates", "recipes-out/squad-v1.1"]),
    ],
)
def test_mistakes(tmp_path, task, words, problems):
    done = call(tmp_path, "recipe", task, *words)
    assert done.returncode == 2
    assert all(problem in done.stderr for problem in problems)
    assert list(tmp_path.iterdir()) == []


def test_help(tmp_path):
    done = call(tmp_path, "recipe", "squad", "--help")
    assert done.returncode == 0
    for option in ("--version {1.1,2.0}", "--null-threshold X", "--raw DIR", "--dry-run"):
        assert option in done.stdout
    assert "--decoding" not in done.stdout
