"""Tables and answers as s2sft predict writes them, scored by s2sft evaluate."""

import json
import re

import pytest
from raw_corpora import squad_with_impossible

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.prediction_files import read_answers, read_table


@pytest.fixture
def squad_files(tmp_path):
    data = [squad_with_impossible("Tower")]
    (tmp_path / "dev.json").write_text(json.dumps({"version": "v2.0", "data": data}))
    answers = {"Tower-0": "Tower", "Tower-1": "boat", "Tower-2": "", "another": "x"}
    (tmp_path / "answers.json").write_text(json.dumps(answers))
    (tmp_path / "odds.json").write_text(json.dumps({"Tower-0": -2.5, "Tower-1": 1, "Tower-2": 3.0}))
    return tmp_path


def table(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_tables(tmp_path, call_command):
    said = table(tmp_path / "said.tsv", "index\tprediction", "0\t1", "1\t0", "2\t1")
    labels = table(tmp_path / "valid.label", "1", "1", "1")
    assert [(e.hypothesis, e.references) for e in read_table(said, labels)] == [
        ("1", ("1",)),
        ("0", ("1",)),
        ("1", ("1",)),
    ]
    call_command("evaluate", "--task", "mrpc", "--hyp", said, "--ref", labels, "--json", "scores.json")
    scores = json.loads((tmp_path / "scores.json").read_text())["systems"][str(said)]["scores"]
    assert {score["name"]: score["value"] for score in scores} == {
        "F1": pytest.approx(80),
        "accuracy": pytest.approx(200 / 3),
    }
    plain = table(tmp_path / "said.txt", "1", "1", "1")
    assert "100.00" in call_command("evaluate", "--task", "sst-2", "--hyp", plain, "--ref", labels).stdout


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["id\tlabel", "0\t1"], r"must begin with the line 'index\\tprediction', but begins with 'id\\tlabel'"),
        (["index\tprediction", "0\t1", "2\t1", "2"], r"2 line\(s\) are not the next index and a prediction: line 3, 4"),
        (["index\tprediction", "0\t1"], r"each label needs a prediction: .* has 2, .* 1$"),
    ],
)
def test_damaged_tables(tmp_path, lines, problem):
    with pytest.raises(UserError, match=problem):
        read_table(table(tmp_path / "said.tsv", *lines), table(tmp_path / "labels", "1", "1"))


def test_answers(squad_files, call_command):
    examples = read_answers(squad_files / "answers.json", squad_files / "dev.json", squad_files / "odds.json")
    assert [(e.hypothesis, e.references[0], e.null_odds) for e in examples] == [
        *(("Tower", "Tower", -2.5), ("boat", "tells", 1.0), ("", "", 3.0))
    ]
    words = ("evaluate", "--task", "squad_v2", "--hyp", "answers.json", "--ref", "dev.json")
    plain = call_command(*words).stdout
    assert re.search(r"HasAns EM +HasAns F1 +NoAns EM +NoAns F1\n", plain)
    assert re.search(r"answers\.json +66\.67 +66\.67 +50\.00 +50\.00 +100\.00 +100\.00", plain)
    searched = call_command(*words, "--null-odds", "odds.json", "--null-threshold", -3).stdout
    assert re.search(r"answers\.json +33\.33 ", searched)
    assert "threshold of best F1" in searched
    wrong = call_command(*words, "dev.json", "--null-threshold", 1, status=2).stderr
    assert "--ref must be SQuAD's own file alone, but names 2 files" in wrong
    assert "--null-threshold needs --null-odds" in wrong
    wrong = call_command(
        "evaluate", "--task", "rouge", "--hyp", "a", "b", "--ref", "c", "--null-odds", "o", status=2
    ).stderr
    assert "--null-odds is for --metrics squad_v2" in wrong
    assert "--null-odds belongs to one file of answers: score one --hyp, and no --baseline-hyp" in wrong


def test_what_the_official_programs_do_not_read(squad_files):
    """Titles, passages and places of answers may be missing or wrong."""
    questions = [{"id": "a", "answers": [{"text": "one"}, {"text": "two"}]}, {"id": "b", "answers": []}]
    (squad_files / "bare.json").write_text(json.dumps({"data": [{"paragraphs": [{"qas": questions}]}]}))
    (squad_files / "said.json").write_text('{"a": "two", "b": ""}')
    found = read_answers(squad_files / "said.json", squad_files / "bare.json")
    assert [(example.hypothesis, example.references) for example in found] == [("two", ("one", "two")), ("", ("",))]
    (squad_files / "bare.json").write_text(json.dumps({"data": [{"paragraphs": [{"qas": [{"id": "a"}]}]}]}))
    with pytest.raises(UserError, match=r"(?s)bare\.json must be a file of SQuAD's:.*lacks 'answers'"):
        read_answers(squad_files / "said.json", squad_files / "bare.json")


def test_missing_and_damaged_answers(squad_files):
    answers, data, odds = (squad_files / name for name in ("answers.json", "dev.json", "odds.json"))
    (squad_files / "few.json").write_text('{"Tower-0": "x"}')
    with pytest.raises(UserError) as raised:
        read_answers(squad_files / "few.json", data, odds)
    assert str(raised.value) == f"{squad_files / 'few.json'} lacks 2 question(s) of {data}: Tower-1, Tower-2"
    answers.write_text('{"Tower-0": 1}')
    with pytest.raises(UserError, match=r"must give a text for each question, but for 1 it does not: Tower-0$"):
        read_answers(answers, data)
