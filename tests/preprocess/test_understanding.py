"""``preprocess/glue.py`` on small files; tests/end_to_end/test_question_answering.py runs ``preprocess/squad.py``."""

import runpy
import sys
from pathlib import Path

import pytest
from raw_corpora import glue, glue_file

SCRIPT = Path(__file__).resolve().parents[2] / "preprocess" / "glue.py"


def run(monkeypatch, folder, task, *words):
    options = ("--raw", folder / "raw", "--output", folder / task, "--task", task, *words)
    monkeypatch.setattr(sys, "argv", ["glue.py", *map(str, options)])
    runpy.run_path(str(SCRIPT), run_name="__main__")


def test_files_of_tasks(tmp_path, monkeypatch, capsys):
    glue(tmp_path / "raw")
    run(monkeypatch, tmp_path, "mnli", "--limit", 2)
    assert capsys.readouterr().out == f"{tmp_path / 'mnli'}: train 2, valid 2, valid1 2, test 2, test1 2, test2 2\n"
    assert (tmp_path / "mnli" / "labels.txt").read_text() == "contradiction\nentailment\nneutral\n"
    assert (tmp_path / "mnli" / "valid1.label").read_text() == "neutral\nentailment\n"
    assert not (tmp_path / "mnli" / "test.label").exists()
    assert (tmp_path / "mnli" / "train.txt").read_text().count(" [SEP] ") == 2
    run(monkeypatch, tmp_path, "sts-b")
    assert not (tmp_path / "sts-b" / "labels.txt").exists()
    assert (tmp_path / "sts-b" / "valid.label").read_text() == "2.500\n0.0\n5\n2.500\n"


def test_malformed_rows(tmp_path, monkeypatch, capsys):
    glue(tmp_path / "raw")
    path = tmp_path / "raw" / "SST-2" / "train.tsv"
    glue_file(path, "sentence label", ["1", "2", "x"])
    with pytest.raises(SystemExit):
        run(monkeypatch, tmp_path, "sst-2")
    error = capsys.readouterr().err
    assert f"2 malformed records (2 in {path}); --skip-malformed leaves them out:" in error
    assert f"{path}:3: the label must be one of 0, 1, but is '2'" in error
    run(monkeypatch, tmp_path, "sst-2", "--skip-malformed")
    assert "sst-2: train 1, valid 4, test 3" in capsys.readouterr().out
