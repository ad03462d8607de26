"""`s2sft doctor`: the command line. The findings are tested in `tests/diagnosis`."""

import json
import shutil
import sys

import pytest

from s2sft_fairseq.checksums import write_checksums
from s2sft_fairseq.commands import doctor
from s2sft_fairseq.diagnosis import machine

FAULTLESS = {"facts": {}, "notes": [], "problems": []}


def test_files(call_command, tiny_parts):
    done = call_command("doctor", tiny_parts)
    assert f"{tiny_parts}  all files are as they were written" in done.stdout
    assert f"{tiny_parts}/model" in done.stdout and "model folder, 15 symbols, wordpiece" in done.stdout


def test_a_folder_without_checksums(call_command, tiny_parts, tmp_path):
    model = shutil.copytree(tiny_parts / "model", tmp_path / "model")
    (model / "SHA256SUMS").unlink()
    assert f"{model}  not compared: no SHA256SUMS" in call_command("doctor", model).stdout


def test_json(call_command, tiny_parts):
    found = json.loads(call_command("doctor", "--json", tiny_parts).stdout)
    assert found["problems"] == [] and found["notes"] == []
    assert found["facts"]["parts"][f"{tiny_parts}/data"][:2] == ["binarized data", "15 symbols"]


def test_problems(call_command, tiny_parts, tmp_path):
    """Damage and misfits together, in the JSON as well; each once."""
    run = shutil.copytree(tiny_parts, tmp_path / "run")
    for side in ("src", "tgt"):
        with (run / "data" / f"dict.{side}.txt").open("a") as file:
            file.write("k 1\n")
    write_checksums(run / "data")
    (run / "model" / "dict.txt").write_text("damaged 1\n")
    done = call_command("doctor", "--json", run, status=2)
    found = json.loads(done.stdout)["problems"]
    assert len(found) == len(set(found)) and all(problem in done.stderr for problem in found)
    assert any("model/dict.txt is damaged, or was changed" in problem for problem in found)
    assert any("16 symbols" in problem and "--srcdict" in problem for problem in found)


def test_a_checkpoint(call_command, tiny_training):
    assert "checkpoint, 15 symbols" in call_command("doctor", tiny_training.checkpoint).stdout


def test_accept_needs_folders(call_command, tmp_path):
    (tmp_path / "file").write_text("")
    done = call_command("doctor", "--accept", "file", status=2)
    assert "--accept is for folders, but file is a file" in done.stderr
    assert "--accept needs at least one PATH" in call_command("doctor", "--accept", status=2).stderr


@pytest.fixture
def quick(monkeypatch):
    """Programs of metrics are not started, and nothing is measured."""
    monkeypatch.setattr(machine, "_programs", lambda report: [])


def test_the_machine(call_command, quick):
    done = call_command("doctor", status=None)
    for title in ("versions", "optional packages", "GPU", "CPU", "memory and disks"):
        assert f"\n{title}\n" in f"\n{done.stdout}"


def test_a_broken_installation(call_command, quick, monkeypatch):
    """What can be told is told."""
    monkeypatch.setitem(sys.modules, "s2sft_fairseq.diagnosis.hardware", None)
    done = call_command("doctor", "--json", status=2)
    assert "PyTorch and fairseq must load" in done.stderr
    assert json.loads(done.stdout)["facts"]["versions"]["Python"]


def test_notes_are_no_problems(call_command, monkeypatch):
    monkeypatch.setattr(doctor, "_look_at_machine", lambda report: report.notes.append("ray is not installed"))
    assert "ray is not installed" in call_command("doctor").stdout
    assert json.loads(call_command("doctor", "--json").stdout) == {**FAULTLESS, "notes": ["ray is not installed"]}
