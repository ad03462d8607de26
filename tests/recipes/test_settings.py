"""Configuration files of recipes: --config reads what --dump-config writes, and their values can be changed."""

import shlex
import tomllib
from itertools import pairwise

import pytest
from called import call

from s2sft_fairseq.recipes.benchmarks import BENCHMARKS
from s2sft_fairseq.recipes.settings import read_presets

CASES = [(name, ()) for name in BENCHMARKS]
CASES += [(row["recipe"], ("--preset", row["preset"])) for row in read_presets()]
CASES += [
    ("squad_qg", ("--set", "tgt-test", "--split", "reversed")),
    ("squad_qg", ("--method", "causal", "--lr", "1", "--warmup", "3")),
    ("squad_qg", ("--method", "deltalm", "--max-target", "40")),
    ("xgiga", ("--lang", "zh", "--method", "deltalm", "--train-lang", "en", "--text-langs", "en,zh")),
    ("glue", ("--glue-task", "sts-b", "--weight-decay", "0.1")),
]


def run(folder, task, *words):
    done = call(folder, "recipe", task, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path):
    """A folder with a large encoder."""
    (tmp_path / "large").mkdir()
    (tmp_path / "large" / "config.json").write_text('{"hidden_size": 1024}')
    return tmp_path


@pytest.mark.parametrize(("task", "words"), CASES)
def test_a_file_is_read_as_it_was_written(folder, task, words):
    (folder / "file.toml").write_text(run(folder, task, *words, "--dump-config"))
    for further in (("--updates", 9), ("--updates", 60000), ("--updates", 9, "--smoke")):
        commands = run(folder, task, *words, "--dry-run", *further)
        assert run(folder, task, "--config", "file.toml", "--dry-run", *further) == commands
    again = run(folder, task, "--config", "file.toml", "--dump-config")
    assert tomllib.loads(again) == tomllib.loads((folder / "file.toml").read_text())


def test_each_value_follows_its_source(folder):
    text = run(folder, "cnn_dailymail", "--preset", "base/cnndm", "--seed", 3, "--dump-config")
    head, *groups = text.split("\n\n")
    assert head.startswith("# CNN/DailyMail: from a news article to its highlights.\n#\n# Raw files: ")
    sources = {source.removeprefix("# "): set(lines) for source, *lines in (group.splitlines() for group in groups)}
    assert {"max_source = 640", 'noise_prob = "0.7"', "batch = 64"} < sources["ERNIE-GEN, base/cnndm_conf, Table 1"]
    assert sources["the command line"] == {'preset = "base/cnndm"', "seed = 3"}
    assert "warmup = 1000" in sources["s2s-ft, Table 7"]
    assert "max_source = 384" in run(folder, "squad_qg", "--dump-config").split("# s2s-ft, Table 8")[1]


def test_a_changed_value_wins(folder):
    """It overrides a preset and values derived from other settings; the command line overrides it."""

    def options(task, *words):
        train, *generate = run(folder, task, "--config", "file.toml", "--dry-run", *words).splitlines()
        words = shlex.split(train)
        return dict(pairwise(words)) | {"generate": generate}

    (folder / "file.toml").write_text('preset = "base/cnndm"\nlr = "1"\nwarmup = 500\nseparator = " | "')
    found = options("cnn_dailymail", "--updates", 1000)
    assert (found["--lr"], found["--warmup-updates"], found["--max-source-positions"]) == ("1", "500", "640")
    assert "--separator ' | '" in found["generate"][0]
    assert options("cnn_dailymail", "--updates", 1000, "--lr", 2)["--lr"] == "2"
    # The usual learning rate changes for a large encoder, another one does not.
    (folder / "file.toml").write_text('lr = "7e-5"\nmax_source = 100')
    found = options("squad_qg", "--updates", 9, "--encoder", "large")
    assert (found["--lr"], found["--max-source-positions"]) == ("2e-5", "100")
    (folder / "file.toml").write_text('lr = "6e-5"')
    assert options("squad_qg", "--updates", 9, "--encoder", "large")["--lr"] == "6e-5"
    # With another language its score is used, if the file has the usual one.
    (folder / "file.toml").write_text(run(folder, "xgiga", "--lang", "fr", "--dump-config"))
    words = ("--config", "file.toml", "--lang", "zh", "--dump-config")
    assert tomllib.loads(run(folder, "xgiga", *words))["evaluation"] == "--task zh --metrics rouge"


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("epochs = 0\nmethod = 'x'\nbeam = 3", [
            "file.toml: --epochs must be a whole number of at least 1, but is 0",
            "file.toml: --method must be one of causal,", "file.toml: there is no setting beam",
        ]),
        ("raw = 'x'", ["file.toml: there is no setting raw"]),
        ("epochs =", ["--config file.toml must be a TOML file"]),
        (None, ["--config file.toml must be a TOML file", "No such file"]),
    ],
)  # fmt: skip
def test_mistakes(tmp_path, text, problems):
    if text is not None:
        (tmp_path / "file.toml").write_text(text)
    done = call(tmp_path, "recipe", "e2e", "--config", "file.toml", "--dump-config")
    assert done.returncode == 2
    assert all(problem in done.stderr for problem in problems), done.stderr
