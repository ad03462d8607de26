"""Checkpoints and encoders whose parts are of another kind: a list as `args`, a text as a size."""

import json

import pytest
import torch
from fairseq import checkpoint_utils
from hostile_files import save_weights

from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checkpoints.source_files import open_source
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.pretrained_checkpoint import open_pretrained


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"args": ["unilm"]}, "args must be a Namespace, but is a list"),
        ({"args": "unilm"}, "args must be a Namespace, but is a str"),
        ({"cfg": [("model", {})]}, "cfg must be a dict, but is a list"),
        ({"cfg": {}, "model": [torch.zeros(1)]}, "model must be a dict, but is a list"),
        ({"cfg": {}, "model": None}, "model must be a dict, but is a NoneType"),
        ({"cfg": {}, "model": {"a": 1}}, r"model\.a must be a tensor, but is a int"),
        ({"cfg": {}, "task_state": [1]}, "task_state must be a dict, but is a list"),
        ({"task_state": 1}, "task_state must be a dict, but is a int"),
        ({"cfg": {}, "task_state": {"layout": 1}}, r"task_state\.layout must be an object, but is 1"),
        ({"cfg": {}, "task_state": {"layout": {3: "x"}}}, r"task_state\.layout\.3 must be named by a text"),
    ],
)
def test_parts_of_another_kind(tmp_path, entries, message):
    path = save_weights(tmp_path, {"model": {"a": torch.zeros(1)}, **entries})
    for read in (load_checkpoint, open_source, lambda path: checkpoint_utils.load_checkpoint_to_cpu(str(path))):
        with pytest.raises(UserError, match=rf"pytorch_model\.bin: {message}"):
            read(path)


@pytest.mark.parametrize("cfg", [{"model": "unilm"}, {"model": [1]}])
def test_options_of_another_kind(tmp_path, cfg):
    path = save_weights(tmp_path, {"model": {"a": torch.zeros(1)}, "cfg": cfg})
    with pytest.raises(UserError, match=r"pytorch_model\.bin: cfg\.model must be a dict, but is a (str|list)"):
        open_source(path)


@pytest.mark.parametrize("cfg", [True, torch.zeros(0), {"model": torch.zeros(())}, {"model": True}])
def test_the_configuration_of_a_checkpoint_without_a_model(tmp_path, cfg):
    path = save_weights(tmp_path, {"cfg": cfg})
    with pytest.raises(UserError, match=r"pytorch_model\.bin must be a checkpoint of a unilm model, but is one of an"):
        open_pretrained(path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sizes", [1]),
        ("vocab_size", "50"),
        ("vocab_size", True),
        ("newly_initialized", {"a": 1}),
        ("layout", []),
        ("files", [1]),
        ("model", None),
    ],
)
def test_the_configuration_of_a_converted_encoder(tmp_path, name, value):
    described = {"sizes": {}, "vocab_size": 50, "newly_initialized": [], name: value}
    (tmp_path / "config.json").write_text(json.dumps(described))
    for file in ("model.pt", "dict.txt"):
        (tmp_path / file).write_text("")
    with pytest.raises(UserError, match=rf"config\.json was not written by 's2sft convert': {name} must be "):
        PretrainedEncoder.open(tmp_path)
