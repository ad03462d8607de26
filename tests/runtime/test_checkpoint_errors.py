"""fairseq's own loading reports a bad checkpoint by name."""

import argparse
import collections
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils

from s2sft_fairseq.errors import UserError


def checkpoint(**entries):
    return {
        "args": None,
        "cfg": {"model": argparse.Namespace(arch="unilm_tiny")},
        "model": {"weight": torch.ones(2)},
        "optimizer_history": [{"optimizer_name": "FairseqAdam", "lr_scheduler_state": {}, "num_updates": 3}],
        "extra_state": {"train_iterator": {"epoch": 1}},
        **entries,
    }


def save(path, state):
    torch.save(state, path)
    return str(path)


def test_loads_a_good_checkpoint(tmp_path):
    state = checkpoint_utils.load_checkpoint_to_cpu(save(tmp_path / "good.pt", checkpoint()))
    assert state["cfg"].model.arch == "unilm_tiny"
    assert state["optimizer_history"][-1]["num_updates"] == 3


def test_refuses_other_types(tmp_path):
    path = save(tmp_path / "foreign.pt", checkpoint(extra=collections.UserDict()))
    with pytest.raises(UserError, match=r"foreign\.pt: refused, it holds collections\.UserDict\."):
        checkpoint_utils.load_checkpoint_to_cpu(path)


def test_names_a_truncated_file(tmp_path):
    path = save(tmp_path / "whole.pt", checkpoint())
    truncated = tmp_path / "truncated.pt"
    truncated.write_bytes((tmp_path / "whole.pt").read_bytes()[:700])
    with pytest.raises(UserError, match=r"truncated\.pt \(700 bytes\): not a PyTorch checkpoint, or a truncated"):
        checkpoint_utils.load_checkpoint_to_cpu(str(truncated))
    assert checkpoint_utils.load_checkpoint_to_cpu(path)


def test_refuses_weights_alone(tmp_path):
    path = save(tmp_path / "weights.pt", {f"layer{number}": torch.ones(1) for number in range(7)})
    message = r"weights\.pt: not a fairseq checkpoint.* this file holds layer0, layer1, layer2, layer3, layer4, \.\.\."
    with pytest.raises(UserError, match=message):
        checkpoint_utils.load_checkpoint_to_cpu(path)


def test_other_errors_of_a_good_file_stay_what_they_are(tmp_path):
    path = save(tmp_path / "unfinished.pt", checkpoint(optimizer_history=[]))
    with pytest.raises(IndexError):
        checkpoint_utils.load_checkpoint_to_cpu(path)


def test_names_a_missing_model(tmp_path):
    with pytest.raises(UserError, match=r"Model file not found: .*nothing\.pt \(--path\)"):
        checkpoint_utils.load_model_ensemble([str(tmp_path / "nothing.pt")])


RESTORING = ["restore_file", "finetune_from_model", "continue_once"]


def restore(tmp_path, **options):
    """Look for the checkpoint of a training, as fairseq does at its beginning."""
    defaults = {"restore_file": "checkpoint_last.pt", "finetune_from_model": None, "continue_once": None}
    cfg = SimpleNamespace(**defaults | {"save_dir": str(tmp_path / "saved")} | options)
    checkpoint_utils.load_checkpoint(cfg, SimpleNamespace(checkpoint_suffix=""))


@pytest.mark.parametrize("option", RESTORING)
def test_a_checkpoint_that_was_asked_for_must_exist(tmp_path, option):
    message = rf"--{option.replace('_', '-')} nothing\.pt: no such checkpoint file"
    with pytest.raises(UserError, match=message):
        restore(tmp_path, **{option: "nothing.pt"})


@pytest.mark.parametrize("option", RESTORING)
def test_a_checkpoint_is_no_folder(tmp_path, option):
    message = rf"--{option.replace('_', '-')} {tmp_path}: a checkpoint file is needed, but this is a folder"
    with pytest.raises(UserError, match=message):
        restore(tmp_path, **{option: str(tmp_path)})


def test_the_last_checkpoint_is_no_folder(tmp_path):
    (tmp_path / "saved" / "checkpoint_last.pt").mkdir(parents=True)
    with pytest.raises(UserError, match=r"--save-dir .*saved/checkpoint_last\.pt: a checkpoint file is needed"):
        restore(tmp_path)
