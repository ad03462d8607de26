"""`s2sft evaluate`."""

import json
import os

import pytest

from s2sft_fairseq.commands.evaluate import LABEL_METRICS, SQUAD_METRICS
from s2sft_fairseq.evaluation.evaluate import METRICS
from s2sft_fairseq.evaluation.settings import TASKS, Settings

HYPOTHESES = ["the first one", "b a", "nothing at all"]
REFERENCES = ["the first", "a b", "nothing"]


@pytest.fixture
def files(tmp_path):
    def write(name, *lines):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    write("hyp", *HYPOTHESES)
    write("other", *REFERENCES)
    write("ref", *REFERENCES)
    write("src", "s", "t", "s")
    return "--hyp", "hyp", "--ref", "ref"


@pytest.fixture
def scores(call_command, files, tmp_path):
    """Run the command and return the scores by name."""

    def run(*options):
        call_command("evaluate", *files, "--json", "out.json", *options)
        found = json.loads((tmp_path / "out.json").read_text())["systems"]["hyp"]["scores"]
        return {score["name"]: score for score in found}

    return run


def test_a_table(call_command, files):
    done = call_command("evaluate", "--task", "rouge", *files, "--metrics", "rouge")
    header, row, signature = done.stdout.splitlines()
    assert header.split() == ["ROUGE-1", "ROUGE-2", "ROUGE-L", "ROUGE-Lsum"]
    # 0.8, 1 and 0.5; 2/3, 0 and 0; 0.8, 0.5 and 0.5
    assert row.split() == ["hyp", "76.67", "22.22", "60.00", "60.00"]
    assert signature.startswith("ROUGE-1, ROUGE-2, ROUGE-L, ROUGE-Lsum: tool:rouge-score|version:")
    assert signature.endswith("|tok:ascii|stem:porter|case:kept|split:line|trunc:no|refs:1")


def test_several_systems_as_latex(call_command, files):
    lines = call_command(
        "evaluate", "--task", "rouge", "--hyp", "hyp", "other", *files[2:], "--latex"
    ).stdout.splitlines()
    assert lines[0] == "% ROUGE-1 & ROUGE-2 & ROUGE-L & ROUGE-Lsum"
    assert lines[-2:] == [r"hyp & 76.67 & 22.22 & 60.00 & 60.00 \\", r"other & 100.00 & 66.67 & 100.00 & 100.00 \\"]


def test_options_override_the_task(scores):
    assert "|trunc:160|" in scores("--task", "cnndm")["ROUGE-1"]["signature"]
    changed = scores("--task", "cnndm", "--truncate", "70", "--min-sentence-words", "0", "--no-stem")["ROUGE-1"]
    assert "|stem:no|" in changed["signature"]
    assert "|trunc:70|" in changed["signature"]
    assert "minwords" not in changed["signature"]
    assert set(scores("--task", "rouge", "--metrics", "sacrebleu")) == {"BLEU"}


def test_intervals_and_a_baseline(scores, call_command, files):
    first = scores("--task", "coqa", "--bootstrap", "100", "--seed", "1")["F1"]
    assert first == scores("--task", "coqa", "--bootstrap", "100", "--seed", "1")["F1"]
    assert first["interval"][0] < first["value"] < first["interval"][1]
    assert first["difference"] is None
    compared = scores("--task", "coqa", "--baseline-hyp", "other", "--bootstrap", "100")["F1"]["difference"]
    assert compared["value"] < 0
    assert compared["p_value"] > 0.1  # three examples are too few
    table = call_command("evaluate", "--task", "coqa", *files, "--baseline-hyp", "other", "--bootstrap", "100").stdout
    assert "hyp: F1 -" in table


def test_grouping(scores, call_command, files):
    options = "--task", "qg", "--metrics", "coqa"
    assert scores(*options, "--src", "src")["F1"]["signature"].endswith("|refs:1-2|group:source")
    done = call_command("evaluate", *files, *options, status=2)
    assert done.stderr == "error: --task qg groups lines by their source: give --src, or --no-group-by-source\n"
    assert scores(*options, "--no-group-by-source")["F1"]["signature"].endswith("|refs:1")


def test_all_mistakes_at_once(call_command, files):
    done = call_command(
        *("evaluate", "--task", "qg", "--hyp", "hyp", "hyp", "--ref", "ref", "--metrics", "coqa", "coqa"),
        *(
            "--truncate",
            "-1",
            "--bootstrap",
            "-2",
            "--seed",
            "-3",
            "--duplicate-rate",
            "2",
            "--min-sentence-words",
            "-4",
        ),
        status=2,
    )
    for text in (
        "--hyp names hyp twice",
        "--metrics names coqa twice",
        "give --src, or --no-group-by-source",
        "--truncate must be at least 0, but is -1",
        "--bootstrap must be at least 0, but is -2",
        "--seed must be at least 0, but is -3",
        "--min-sentence-words must be at least 0, but is -4",
        "--duplicate-rate must be between 0 and 1, but is 2.0",
    ):
        assert f"  - {text}" in done.stderr or text in done.stderr
    assert "8 problems" in done.stderr
    done = call_command("evaluate", "--task", "coqa", *files, "--baseline-hyp", "other", "--bootstrap", "0", status=2)
    assert "--baseline-hyp needs resamples, but --bootstrap is 0" in done.stderr


def test_different_numbers_of_lines(call_command, files, tmp_path):
    (tmp_path / "hyp").write_text("one\n")
    assert "hyp has 1, ref has 3" in call_command("evaluate", "--task", "rouge", *files, status=2).stderr


def test_a_threshold_that_is_no_number(call_command, files):
    words = ("--task", "squad_v2", *files, "--null-odds", "hyp")
    failed = call_command("evaluate", *words, "--null-threshold", "nan", status=2)
    assert "--null-threshold must be a number, but is nan" in failed.stderr


def test_an_unknown_task(call_command, files):
    assert "invalid choice: 'squad'" in call_command("evaluate", "--task", "squad", *files, status=2).stderr


# Tasks with labels and SQuAD have files of their own kinds: tests/evaluation/.
@pytest.mark.parametrize(
    "task", [name for name in TASKS if not {*LABEL_METRICS, *SQUAD_METRICS}.intersection(TASKS[name].metrics)]
)
def test_every_task(task, scores):
    metrics = [metric for metric in TASKS[task].metrics if metric != "meteor"]  # METEOR is slow: tests/evaluation/
    assert set(metrics) <= set(METRICS)
    if any(metric.startswith("coco") for metric in metrics):
        pytest.importorskip("pycocoevalcap.bleu.bleu", reason="pycocoevalcap is not installed")
    found = scores("--task", task, "--src", "src", "--metrics", *metrics)
    assert found
    assert all(0 <= score["value"] <= 400 / 3 for score in found.values())  # NLTK's smoothing goes above 100


def test_every_setting_has_an_option(call_command):
    text = call_command("evaluate", "--help").stdout
    for name in Settings.__dataclass_fields__:
        assert f"--{name.replace('_', '-')}" in text


def test_a_pipe(call_command, files, tmp_path):
    words = ("evaluate", "--task", "rouge", "--metrics", "rouge", "--hyp", "hyp", "--ref")
    expected = call_command(*words, "ref").stdout
    reading, writing = os.pipe()
    os.write(writing, (tmp_path / "ref").read_bytes())
    os.close(writing)
    assert call_command(*words, f"/dev/fd/{reading}").stdout == expected
    os.close(reading)


def test_a_lead_beside_the_scores(call_command, files, tmp_path):
    """Leads are processed like the hypotheses; here, sentences are separated by [X_SEP]."""
    (tmp_path / "article").write_text("The first. The second. The last.\nA b c. D e f.\nNothing is here. At all.\n")
    options = ("--task", "cnndm", "--min-sentence-words", 0, "--src", "article", "--json", "out.json")
    table = call_command("evaluate", *files, *options, "--lead", "2-sentences").stdout
    systems = json.loads((tmp_path / "out.json").read_text())["systems"]
    assert list(systems) == ["hyp", "lead-2-sentences"]
    assert systems["lead-2-sentences"]["examples"] == 3
    leads = ["The first. [X_SEP] The second.", "A b c. [X_SEP] D e f.", "Nothing is here. [X_SEP] At all."]
    (tmp_path / "lead").write_text("".join(f"{lead}\n" for lead in leads))
    call_command("evaluate", "--hyp", "lead", *files[2:], *options)
    (expected,) = json.loads((tmp_path / "out.json").read_text())["systems"].values()
    assert systems["lead-2-sentences"] == expected
    assert "\nlead-2-sentences  " in table

    done = call_command("evaluate", *files, "--task", "sst-2", "--lead", "2-letters", status=2)
    for problem in ("--lead must be", "but is 2-letters", "--lead needs --src", "--lead is for generated text"):
        assert problem in done.stderr
