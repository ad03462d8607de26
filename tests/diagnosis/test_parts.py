"""The parts of a path, and what is read of each."""

import shutil

import pytest
import torch

from s2sft_fairseq.diagnosis.parts import CHECKPOINT, DATA, ENCODER, MODEL_FOLDER, find_parts
from s2sft_fairseq.diagnosis.report import Report

SYMBOLS = 15


def found(path):
    report = Report()
    parts = find_parts(path, report)
    assert not report.problems
    return parts


def test_a_folder_of_parts(tiny_parts):
    parts = {part.path.relative_to(tiny_parts).as_posix(): part for part in found(tiny_parts)}
    assert {name: part.kind for name, part in parts.items()} == {
        "checkpoints/checkpoint_last.pt": CHECKPOINT,
        "data": DATA,
        "encoder": ENCODER,
        "model": MODEL_FOLDER,
    }
    assert {part.count for part in parts.values()} == {SYMBOLS}
    assert len({part.fingerprint for part in parts.values()}) == 1
    sources, targets = parts["data"].lengths["train"]
    assert len(sources) == len(targets) == 50 and (sources == targets).all()
    assert sources.min() >= 3 and sources.max() <= 8


def test_links_are_parts_but_are_not_searched(tiny_parts, tmp_path):
    """As the encoder in the output of a recipe; others lead back, or through the whole machine."""
    for name, target in (("encoder", tiny_parts / "encoder"), ("back", tmp_path), ("machine", "/"), ("up", "..")):
        (tmp_path / name).symlink_to(target)
    (part,) = found(tmp_path)
    assert (part.path.name, part.kind) == ("encoder", ENCODER)
    (tmp_path / "parts").symlink_to(tiny_parts)
    assert len(found(tmp_path / "parts")) == 4


def test_each_part_alone(tiny_parts):
    for name, kind in (("model", MODEL_FOLDER), ("encoder", ENCODER), ("data", DATA), ("checkpoints", CHECKPOINT)):
        (part,) = found(tiny_parts / name)
        assert part.kind == kind
    (part,) = found(tiny_parts / "checkpoints" / "checkpoint_last.pt")
    assert part.facts() == ["checkpoint", "15 symbols", "1 layers of width 16"]
    (part,) = found(tiny_parts / "model")
    assert part.facts() == ["model folder", "15 symbols", "wordpiece", "1 layers of width 16"]


def test_plain_text_and_classes(tiny_data, tmp_path):
    """Data of classification has a folder of texts and one of classes."""
    for folder in ("input0", "label"):
        (tmp_path / folder).mkdir()
        shutil.copy(tiny_data / "dict.src.txt", tmp_path / folder / "dict.txt")
        for end in ("idx", "bin"):
            shutil.copy(tiny_data / f"train.src-tgt.src.{end}", tmp_path / folder / f"train.{end}")
    (part,) = found(tmp_path)
    assert part.path.name == "input0" and part.lengths["train"][1] is None


def test_what_cannot_be_read_is_a_problem_each(tiny_parts, tmp_path):
    run = shutil.copytree(tiny_parts, tmp_path / "run")
    (run / "model" / "config.json").write_text("{")
    (run / "data" / "valid.src-tgt.src.bin").write_bytes(b"")
    (run / "data" / "test.src-tgt.tgt.idx").unlink()
    torch.save({"step": 1}, run / "checkpoints" / "other.pt")
    report = Report()
    parts = find_parts(run, report)
    text = "\n".join(report.problems)
    for stated in ("model/config.json", "valid.src-tgt.src.bin is damaged", "test.src-tgt.tgt.idx is missing"):
        assert stated in text
    assert "other.pt must be a checkpoint of s2sft train" in text
    assert [part.kind for part in parts] == [CHECKPOINT, DATA, ENCODER]


def test_weights_that_are_not_finite(tiny_parts, tmp_path):
    file = tmp_path / "checkpoint.pt"
    state = torch.load(tiny_parts / "checkpoints" / "checkpoint_last.pt", weights_only=True)
    state["model"]["lm_head.bias"][0] = float("nan")
    torch.save(state, file)
    report = Report()
    assert len(find_parts(file, report)) == 1
    assert "lm_head.bias" in "\n".join(report.problems)


@pytest.mark.parametrize("name", ["train.log", "dict.txt"])
def test_another_file(tmp_path, name):
    (tmp_path / name).write_text("a 1\n")
    report = Report()
    assert not find_parts(tmp_path / name, report)
    assert name in report.problems[0]
