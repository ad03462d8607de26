"""The folder of a converted encoder."""

import json
import os

import pytest
import torch
from fairseq import checkpoint_utils
from tiny import tiny_dictionary, tiny_model

from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder, write_pretrained
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.unilm_config import SIZES


@pytest.fixture
def model():
    return tiny_model(1)


@pytest.fixture
def conversion(model):
    sizes = {name: getattr(model.cfg, name) for name in SIZES}
    weights = {name: value for name, value in model.state_dict().items() if name != "lm_head.bias"}
    suggested = {"target_segment": 5}
    return Conversion("BERT", weights, sizes, suggested, unused=["pooler"], missing=["lm_head.bias"])


@pytest.fixture
def folder(tmp_path, conversion):
    write_pretrained(tmp_path / "new" / "encoder", conversion, ["vocab.txt"])
    tiny_dictionary().save(str(tmp_path / "new" / "encoder" / "dict.txt"))
    return tmp_path / "new" / "encoder"


def test_round_trip(folder, model, conversion):
    encoder = PretrainedEncoder.open(str(folder))
    files = ["config.json", "dict.txt", "model.pt", "vocab.txt"]
    suggested = {"target_segment": 5}
    assert encoder == PretrainedEncoder(folder, conversion.sizes, 50, ["lm_head.bias"], suggested, "BERT", files)
    other = tiny_model(2)
    kept = other.lm_head.bias.clone()
    encoder.load_into(other)
    for name, value in other.state_dict().items():
        assert torch.equal(value, kept if name == "lm_head.bias" else model.state_dict()[name]), name


def test_nothing_but_the_files_is_left(folder):
    assert sorted(os.listdir(folder)) == ["config.json", "dict.txt", "model.pt"]


def test_it_is_a_checkpoint_of_fairseq(folder, conversion):
    state = checkpoint_utils.load_checkpoint_to_cpu(str(folder / "model.pt"))
    assert state["cfg"]["model"]["_name"] == "unilm"
    assert state["cfg"]["model"]["encoder_layers"] == conversion.sizes["encoder_layers"]
    assert state["task_state"] == {}


def test_an_interrupted_conversion_leaves_the_old_one(folder, conversion, monkeypatch):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        write_pretrained(folder, conversion)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_every_missing_file_is_named(folder, tmp_path):
    (folder / "model.pt").unlink()
    (folder / "dict.txt").unlink()
    message = r"^--pretrained .*encoder must be a folder written by 's2sft convert', but lacks model\.pt, dict\.txt$"
    with pytest.raises(UserError, match=message):
        PretrainedEncoder.open(folder)
    with pytest.raises(UserError, match=r"but lacks model\.pt, config\.json, dict\.txt$"):
        PretrainedEncoder.open(tmp_path / "absent")


@pytest.mark.parametrize("text", ["no JSON", "[1]", '{"sizes": {}}', json.dumps({"hidden_size": 768})])
def test_the_configuration_of_something_else(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(UserError, match=r"config\.json was not written by 's2sft convert': "):
        PretrainedEncoder.open(folder)


def test_weights_that_are_not_tensors(folder):
    """Found by fuzzing, in a file without the configuration that fairseq writes."""
    weights = torch.load(folder / "model.pt")["model"]
    torch.save({"model": {**weights, "layers.0.fc1.bias": None}}, folder / "model.pt")
    with pytest.raises(
        UserError, match=r"model\.pt is damaged: layers\.0\.fc1\.bias must be a tensor, but is a NoneType"
    ):
        PretrainedEncoder.open(folder).load_into(tiny_model())


def test_weights_that_do_not_fit(folder):
    with pytest.raises(UserError, match=r"layers\.0\.fc1\.bias must have the shape \(48,\), but has \(32,\)"):
        PretrainedEncoder.open(folder).load_into(tiny_model(encoder_ffn_embed_dim=48))
