"""The files of a model folder: written, read, and with every kind of damage."""

import json
from dataclasses import fields

import pytest
import torch

from s2sft_fairseq.checkpoints.model_folder import (
    CONFIG,
    SEARCH,
    WEIGHTS,
    checkpoint_file,
    is_model_folder,
    read_config,
    read_model,
    write_model,
)
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.options import SearchOptions

pytest.importorskip("safetensors", reason="is what a model folder holds")

TIED = torch.arange(12.0).view(4, 3)
STATE = {
    "model": {
        "embeddings.weight": TIED,
        "head.weight": TIED,
        "half": torch.ones(2, dtype=torch.bfloat16),
        "transposed": torch.arange(6).view(2, 3).t(),
        "part": torch.arange(10)[3:5],
        "whole": (WHOLE := torch.arange(6.0)),
        "whole in rows": WHOLE.view(2, 3),
        "none": torch.zeros(0, 3),
        "number": torch.tensor(7),
    },
    "cfg": {
        "model": {"_name": "unilm", "encoder_layers": 2, "pretrained": "/somewhere/encoder"},
        "task": {"_name": "unilm_seq2seq", "data": "/somewhere/data", "span_vocab": None},
        "criterion": None,
        "checkpoint": {"save_dir": "/somewhere"},
    },
    "task_state": {"layout": {"finetune_method": "causal"}},
}


@pytest.fixture
def folder(tmp_path):
    write_model(STATE, tmp_path, {"beam": 4}, {"updates": 3})
    return tmp_path


def change(folder, **changes):
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **changes}))


def test_reads_what_was_written(folder):
    for path in (folder, folder / WEIGHTS):
        state = load_checkpoint(path)
        assert state["model"].keys() == STATE["model"].keys()
        for name, value in STATE["model"].items():
            assert torch.equal(state["model"][name], value) and state["model"][name].dtype == value.dtype
        assert state["cfg"]["model"] == {"_name": "unilm", "encoder_layers": 2, "pretrained": None}
        assert state["cfg"]["task"] == {"_name": "unilm_seq2seq", "data": "", "span_vocab": None}
        assert state["task_state"] == STATE["task_state"] and state["search"] == {"beam": 4}
    assert "/somewhere" not in (folder / CONFIG).read_text()


def test_a_tensor_with_two_names_is_written_once(folder):
    from safetensors.torch import load_file

    assert len(load_file(folder / WEIGHTS)) == len(STATE["model"]) - 1
    model = load_checkpoint(folder)["model"]
    assert model["head.weight"].data_ptr() == model["embeddings.weight"].data_ptr()


def test_which_paths_are_model_folders(folder, tmp_path):
    assert is_model_folder(folder) and checkpoint_file(folder) == folder / WEIGHTS
    assert not is_model_folder(folder / WEIGHTS) and checkpoint_file(folder / WEIGHTS) == folder / WEIGHTS
    (folder / CONFIG).write_text("{")
    with pytest.raises(UserError, match=r"config\.json must be JSON"):
        load_checkpoint(folder)
    (folder / CONFIG).write_text('{"model_type": "bert"}')
    assert not is_model_folder(folder) and checkpoint_file(folder) == folder
    assert not is_model_folder(tmp_path / "missing")


@pytest.mark.parametrize(
    ("files", "named"),
    [
        ((CONFIG, "model.pt"), "converted encoder, which s2sft train --pretrained"),
        ((CONFIG, WEIGHTS), "another program's model: s2sft convert"),
        ((WEIGHTS,), r"without config\.json: copy all files"),
        (("checkpoint2.pt", "checkpoint_best.pt"), r"a folder of checkpoints: .*checkpoint2\.pt"),
        ((), r"without config\.json and model\.safetensors"),
    ],
)
def test_errors_of_other_folders(tmp_path, files, named):
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(UserError, match=named):
        load_checkpoint(tmp_path)
    with pytest.raises(UserError, match=named):
        read_config(tmp_path)


def test_a_folder_may_set_every_option_of_a_search():
    """All but those for the machine that runs it, for what is written, and those that follow from the dictionary."""
    given = {option.name for option in fields(SearchOptions)} - {
        "never_generated",
        "never_blocked",
        "cuda_graphs",
        "seed",
        "all_ended",
    }
    assert SEARCH.keys() == given | {"unnormalized", "no_early_stop"}


def test_nothing_else_is_written_as_search(tmp_path):
    with pytest.raises(UserError, match=r"search\.user_dir is no option of a search"):
        write_model(STATE, tmp_path, {"user_dir": "plug"}, {})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"format": "another"}, ["must be a model folder", "another program"]),
        ({"format_version": 0}, ["format_version 0"]),
        ({"format_version": True}, ["format_version True"]),
        ({"format_version": 2}, ["format_version 2", "reads up to 1"]),
        ({"format_version": "1"}, ["format_version '1'"]),
        ({"cfg": None, "task_state": []}, ["cfg must be an object", "task_state must be an object"]),
        ({"cfg": {"model": {"_name": "unilm"}}}, ["cfg.task must be an object"]),
        ({"cfg": {"model": [1], "task": "x"}}, ["cfg.model must be an object", "cfg.task must be an object"]),
        ({"copies": {"head.weight": "gone"}}, ["model.safetensors", "lacks gone"]),
        ({"copies": {"head.weight": ["gone"]}}, ["copies must be names"]),
        ({"task_state": {"layout": 5}}, ["task_state.layout must be an object, but is 5"]),
        (
            {"task_state": {"layout": {"languages": ["de", 5], "max_source_positions": "x", "finetune_method": 7}}},
            ["languages must be a list of texts", "max_source_positions must be a whole", "finetune_method must be a"],
        ),
        ({"task_state": {"layout": {"target_segment": "1", "source_segments": 0}}}, ["target_segment", "source_seg"]),
        ({"search": {"user_dir": "plug"}}, ["search.user_dir is no option of a search"]),
        ({"search": {"beam": ["2", "--user-dir", "plug"]}}, ["search.beam must be a whole number"]),
        ({"search": {"beam": True, "lenpen": float("nan")}}, ["search.beam must be", "search.lenpen must be a number"]),
        ({"search": {"sampling": 1, "early_stop": 3}}, ["search.sampling must be true", "search.early_stop must be"]),
    ],
)
def test_a_damaged_configuration(folder, changes, named):
    change(folder, **changes)
    with pytest.raises(UserError) as raised:
        read_model(folder / WEIGHTS)
    assert all(each in str(raised.value) for each in named)


def test_damaged_files(folder):
    whole = (folder / WEIGHTS).read_bytes()
    for damaged in (whole[:-1], whole[:20], b"", b"\xff" * 100):
        (folder / WEIGHTS).write_bytes(damaged)
        with pytest.raises(UserError, match=r"model\.safetensors is damaged or no safetensors file"):
            load_checkpoint(folder)
    (folder / CONFIG).unlink()
    for path in (folder, folder / WEIGHTS):
        with pytest.raises(UserError, match=r"without config\.json: copy all files"):
            load_checkpoint(path)


def test_missing_weights(folder):
    (folder / WEIGHTS).unlink()
    with pytest.raises(UserError, match=r"model\.safetensors: no such checkpoint file"):
        load_checkpoint(folder)
