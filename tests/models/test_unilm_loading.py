"""Models from pretrained encoders and checkpoints: sizes, weights, and errors of what does not fit."""

import json
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from tiny import ENCODERS, VOCAB_SIZE, tiny_dictionary, tiny_model

from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.checkpoints.pretrained import write_pretrained
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import SIZES, UnilmConfig

TASK = SimpleNamespace(source_dictionary=tiny_dictionary())


# Pretrained encoders


def write_encoder(folder, model, vocab_size=VOCAB_SIZE, without=()):
    """Write a converted encoder with the weights of a model, without some of them."""
    weights = {name: value for name, value in model.state_dict().items() if not name.startswith(tuple(without))}
    missing = sorted(model.state_dict().keys() - weights.keys())
    sizes = {name: getattr(model.cfg, name) for name in SIZES}
    write_pretrained(folder, Conversion("BERT", weights, sizes, missing=missing))
    tiny_dictionary(vocab_size).save(str(folder / "dict.txt"))
    return str(folder)


def test_sizes_and_weights_come_from_the_pretrained_encoder(tmp_path, caplog):
    source = tiny_model(4, relative=True)
    cfg = UnilmConfig(pretrained=write_encoder(tmp_path, source, without=("lm_head.dense", "lm_head.layer_norm")))
    with caplog.at_level("INFO"):
        model = UnilmModel.build_model(cfg, TASK)
    assert {name: getattr(cfg, name) for name in SIZES} == {name: getattr(source.cfg, name) for name in SIZES}
    assert cfg.pretrained is None
    for name, value in model.state_dict().items():
        assert torch.equal(value, source.state_dict()[name]) != name.startswith(
            ("lm_head.dense", "lm_head.layer_norm")
        ), name
    assert (model.lm_head.layer_norm.weight == 1).all()
    assert (
        "newly initialised, for the pretrained encoder lacks them: lm_head.dense.bias, lm_head.dense.weight"
        in caplog.text
    )
    count = len(source.state_dict())
    assert f"loaded {count - 4} of {count} parameters from {tmp_path}" in caplog.text


def test_all_contradictions_to_the_pretrained_encoder(tmp_path):
    folder = write_encoder(tmp_path, tiny_model())
    agreeing = {"encoder_layers": 2, "activation_fn": "gelu", "layer_norm_eps": 1e-12, "num_segments": 2}
    UnilmModel.build_model(UnilmConfig(pretrained=folder, **agreeing), TASK)
    contradicting = {"encoder_embed_dim": 32, "max_positions": 512, "num_segments": 0, "activation_fn": "relu"}
    with pytest.raises(UserError) as raised:
        UnilmModel.build_model(UnilmConfig(pretrained=folder, encoder_layers=2, **contradicting), TASK)
    assert raised.value.problems == [
        "--encoder-embed-dim is 32, but the pretrained encoder has 16",
        "--max-positions is 512, but the pretrained encoder has 64",
        "--activation-fn is relu, but the pretrained encoder has gelu",
        "--num-segments is 0, but the pretrained encoder has 2",
    ]


# Options that were added after the first release.
NEWER = list(SIZES)[list(SIZES).index("embedding_dim") :]


def test_encoders_and_checkpoints_without_newer_options(tmp_path):
    """Options that they do not have get BERT's values."""
    model = tiny_model()
    folder = write_encoder(tmp_path, model)
    config = json.loads((tmp_path / "config.json").read_text())
    config["sizes"] = {name: value for name, value in config["sizes"].items() if name not in NEWER}
    (tmp_path / "config.json").write_text(json.dumps(config))
    built = UnilmModel.build_model(UnilmConfig(pretrained=folder, biases="all"), TASK)
    assert {name: getattr(built.cfg, name) for name in NEWER} == {name: SIZES[name] for name in NEWER}
    with pytest.raises(UserError, match=f"^--pretrained {folder}: --biases is none, but .* has all$"):
        UnilmModel.build_model(UnilmConfig(pretrained=folder, biases="none"), TASK)
    old = Namespace(**{name: value for name, value in vars(model.cfg).items() if name not in NEWER})
    UnilmModel.build_model(old, TASK).load_state_dict(model.state_dict())


@pytest.mark.parametrize("name", ["electra", "modernbert", "causal", "local causal"])
def test_every_option_comes_from_the_pretrained_encoder(tmp_path, name):
    source = tiny_model(4, **ENCODERS[name])
    model = UnilmModel.build_model(UnilmConfig(pretrained=write_encoder(tmp_path, source)), TASK)
    assert {name: getattr(model.cfg, name) for name in SIZES} == {name: getattr(source.cfg, name) for name in SIZES}
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in model.state_dict().items())


def test_the_layout_of_the_pretrained_encoder_is_kept(tmp_path):
    folder = write_encoder(tmp_path, tiny_model())
    assert UnilmModel.build_model(UnilmConfig(pretrained=folder), TASK).pretrained_layout == {}
    assert tiny_model().pretrained_layout == {}
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "layout": {"target_segment": 0}}))
    assert UnilmModel.build_model(UnilmConfig(pretrained=folder), TASK).pretrained_layout == {"target_segment": 0}


def test_a_dictionary_that_does_not_fit_the_encoder(tmp_path):
    folder = write_encoder(tmp_path, tiny_model())
    task = SimpleNamespace(source_dictionary=tiny_dictionary(47))
    with pytest.raises(UserError) as raised:
        UnilmModel.build_model(UnilmConfig(pretrained=folder), task)
    assert str(raised.value) == (
        f"--pretrained {folder}: the dictionary has 47 symbols, but the checkpoint was made with 50: "
        "use the dict.txt that belongs to the checkpoint"
    )


# Checkpoints


def test_weights_can_be_saved_and_loaded():
    source, model = tiny_model(5, relative=True), tiny_model(6, relative=True)
    model.load_state_dict(source.state_dict())
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in model.state_dict().items())


def test_all_parameters_that_do_not_fit():
    states = tiny_model(encoder_ffn_embed_dim=24).state_dict()
    del states["lm_head.bias"]
    states["relative_position.weight"] = torch.zeros(2, 8)
    with pytest.raises(UserError) as raised:
        tiny_model().load_state_dict(states)
    assert str(raised.value).splitlines() == [
        "the checkpoint does not fit the model:",
        *(
            f"  - {name} must have the shape {needed}, but has {found}"
            for layer in range(2)
            for name, needed, found in (
                (f"layers.{layer}.fc1.bias", (32,), (24,)),
                (f"layers.{layer}.fc1.weight", (32, 16), (24, 16)),
                (f"layers.{layer}.fc2.weight", (16, 32), (16, 24)),
            )
        ),
        "  - lm_head.bias is missing",
        "  - relative_position.weight is unknown",
    ]


def test_a_checkpoint_of_another_vocabulary():
    """It is the only error, because nothing else matters then."""
    with pytest.raises(UserError, match=r"^the dictionary has 50 symbols, but the checkpoint was made with 60: "):
        tiny_model().load_state_dict(tiny_model(vocab_size=60, encoder_ffn_embed_dim=24).state_dict())
