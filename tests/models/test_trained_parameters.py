"""Trained and saved parameters: frozen parts, and adapters of a pretrained encoder."""

import re
from types import SimpleNamespace

import pytest
import torch
from tiny import ENCODERS, tiny_dictionary, tiny_model

from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder, write_pretrained
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.trained_parameters import FINGERPRINT, fingerprint, merge_adapters
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import SIZES, UnilmConfig
from s2sft_fairseq.modules.lora import merge_lora

TASK = SimpleNamespace(source_dictionary=tiny_dictionary())
HEAD = ("lm_head.dense.bias", "lm_head.dense.weight")


def write_encoder(folder, model, without=()):
    """Write a converted encoder with the weights of a model, without some of them; return its folder."""
    weights = {name: value for name, value in model.state_dict().items() if name not in without}
    sizes = {name: getattr(model.cfg, name) for name in SIZES}
    write_pretrained(folder, Conversion("BERT", weights, sizes, missing=list(without)))
    tiny_dictionary().save(str(folder / "dict.txt"))
    return str(folder)


@pytest.fixture
def folder(tmp_path):
    """An encoder without the dense layer of the language model head."""
    return write_encoder(tmp_path / "encoder", tiny_model(4), without=HEAD)


def built(folder, **options):
    """Return a model without dropout, ready to be trained."""
    torch.manual_seed(0)
    dropout = {"dropout": 0.0, "attention_dropout": 0.0}
    return UnilmModel.build_model(UnilmConfig(pretrained=folder, **dropout, **options), TASK)


def trained(model):
    """Return the same model after some training, in which all trained parameters have changed."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


@pytest.fixture
def inputs():
    """Two texts of 9 and 5 tokens; all tokens of a text see each other."""
    positions = torch.cat([torch.arange(9), torch.arange(5)])
    zeros = torch.zeros_like(positions)
    tokens = torch.randint(5, 50, (14,), generator=torch.Generator().manual_seed(0))
    columns = {"tokens": tokens, "positions": positions, "segments": zeros, "steps": zeros, "groups": zeros}
    return {**columns, "lengths": ((9,), (5,))}


def logits(model, inputs):
    with torch.no_grad():
        return model.eval()(**inputs)


def without_gradient(model, inputs):
    """Return the names of the parameters without a gradient."""
    model(**inputs).square().mean().backward()
    return {name for name, parameter in model.named_parameters() if parameter.grad is None}


TABLES = {"embeddings.tokens.weight", "embeddings.positions.weight", "embeddings.segments.weight"}


def test_frozen_embeddings(folder, inputs, caplog):
    caplog.set_level("INFO")
    model = built(folder, freeze_embeddings=True)
    assert without_gradient(model, inputs) == TABLES
    assert model.lm_head.bias.grad is not None
    frozen = (50 + 64 + 2) * 16
    total = sum(parameter.numel() for parameter in model.parameters())
    assert f"{total - frozen:,} of {total:,} parameters are trained" in caplog.messages


def test_tables_that_a_model_does_not_have(tmp_path):
    model = built(write_encoder(tmp_path / "modern", tiny_model(**ENCODERS["modernbert"])), freeze_embeddings=True)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {"embeddings.tokens.weight"}


@pytest.mark.parametrize("relative", [False, True])
def test_frozen_layers(tmp_path, inputs, relative):
    """The backward pass ends above them."""
    model = built(write_encoder(tmp_path / "encoder", tiny_model(relative=relative)), freeze_layers=1)
    seen = []
    model.layers[1].register_forward_pre_hook(lambda module, args: seen.append(args[0].requires_grad))
    below = ("embeddings.", "relative_position.", "layers.0.")
    assert without_gradient(model, inputs) == {name for name, _ in model.named_parameters() if name.startswith(below)}
    assert seen == [False]


def test_nothing_is_logged_if_everything_is_trained(folder, caplog):
    caplog.set_level("INFO")
    assert all(parameter.requires_grad for parameter in built(folder).parameters())
    assert "parameters are trained" not in caplog.text


@pytest.mark.parametrize(("targets", "layers"), [("attention", 2), ("all", 4)])
def test_adapters_and_missing_parts_of_the_encoder_are_trained(folder, inputs, targets, layers, caplog):
    caplog.set_level("INFO")
    model = built(folder, lora_rank=2, lora_targets=targets)
    adapters = [name for name, _ in model.named_parameters() if "lora_" in name]
    assert len(adapters) == 2 * 2 * layers  # two matrices in each of two layers
    assert {name for name, parameter in model.named_parameters() if parameter.requires_grad} == {*adapters, *HEAD}
    expected = without_gradient(model, inputs)
    assert expected == {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert re.search(r"^[\d,]+ of [\d,]+ parameters are trained$", caplog.messages[-1])


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_starts_as_its_encoder(tmp_path, encoder, inputs):
    base = tiny_model(4, **encoder)
    model = built(write_encoder(tmp_path / "encoder", base), lora_rank=2, lora_targets="all")
    torch.testing.assert_close(logits(model, inputs), logits(base, inputs), atol=1e-6, rtol=0)


def test_a_checkpoint_has_adapters_only_and_can_be_loaded(folder, inputs):
    model = trained(built(folder, lora_rank=2, lora_dropout=0.1))
    saved = model.state_dict()
    assert {name.rpartition(".")[2] for name in saved.keys() - {*HEAD}} == {"lora_a", "lora_b", FINGERPRINT}
    again = built(folder, lora_rank=2)
    assert not torch.allclose(logits(again, inputs), logits(model, inputs), atol=0.1)
    again.load_state_dict(saved)
    assert torch.equal(logits(again, inputs), logits(model, inputs))
    assert model.cfg.pretrained == folder  # the full path, for finding the encoder when the checkpoint is loaded


def test_within_a_wrapper_too(folder):
    model = built(folder, lora_rank=2)
    wrapped = torch.nn.ModuleDict({"module": model, "other": torch.nn.Linear(1, 1)})
    assert set(wrapped.state_dict()) == {f"module.{name}" for name in model.state_dict()} | {
        "other.weight",
        "other.bias",
    }


def test_missing_parts_of_the_encoder_are_saved_even_if_frozen(tmp_path, inputs):
    folder = write_encoder(tmp_path / "encoder", tiny_model(4), without=("embeddings.segments.weight",))
    model = built(folder, lora_rank=2, freeze_layers=1)
    assert "embeddings.segments.weight" in model.state_dict()
    assert not model.layers[0].attention.qkv.lora_a.requires_grad and model.layers[1].attention.qkv.lora_a.requires_grad


@pytest.mark.parametrize("targets", ["attention", "all"])
def test_merged(folder, inputs, targets):
    model = trained(built(folder, lora_rank=2, lora_targets=targets, lora_alpha=3.0))
    expected, saved = logits(model, inputs), model.state_dict()
    base = load_checkpoint(f"{folder}/model.pt")["model"]
    merged = merge_adapters(saved, base, {"lora_rank": 2, "lora_alpha": 3.0}, folder)
    plain = tiny_model()
    plain.load_state_dict(merged)
    torch.testing.assert_close(logits(plain, inputs), expected, atol=1e-5, rtol=1e-5)
    merge_lora(model)
    torch.testing.assert_close(logits(model, inputs), expected, atol=1e-5, rtol=1e-5)
    assert not any("lora" in name for name, _ in model.named_parameters())


def test_averaged_checkpoints(folder, inputs):
    """Averaged as in fairseq's script: sums divided by n, integers rounded down."""
    states = [trained(built(folder, lora_rank=2)).state_dict(), built(folder, lora_rank=2).state_dict()]
    sums = {name: sum(state[name] for state in states) for name in states[0]}
    average = {name: value / 2 if value.is_floating_point() else value // 2 for name, value in sums.items()}
    model = built(folder, lora_rank=2)
    model.load_state_dict(average)
    assert logits(model, inputs).isfinite().all()


def test_another_encoder_is_refused(folder, tmp_path):
    saved = built(folder, lora_rank=2).state_dict()
    other = write_encoder(tmp_path / "other", tiny_model(5), without=HEAD)
    message = (
        f"the adapters were trained on another encoder than {re.escape(other)}, whose weights may have changed since: "
        r"name the folder that they were trained on \(--pretrained of s2sft train and s2sft export, --model-overrides "
    )
    with pytest.raises(UserError, match=f"^{message}"):
        built(other, lora_rank=2).load_state_dict(saved)
    with pytest.raises(UserError, match=f"^{message}"):
        base = load_checkpoint(f"{other}/model.pt")["model"]
        merge_adapters(saved, base, {"lora_rank": 2, "lora_alpha": 3.0}, other)


def test_an_encoder_that_is_gone(folder):
    with pytest.raises(
        UserError, match=r"^--pretrained gone must be a folder .* but lacks model.pt, .*; adapters need"
    ):
        built("gone", lora_rank=2)
    with pytest.raises(UserError, match=r"^--pretrained gone must be a folder .* but lacks model.pt, [^;]*$"):
        built("gone")


def test_adapters_on_one_side_only(folder):
    plain, adapted = built(folder), built(folder, lora_rank=2)
    with pytest.raises(UserError, match=r"^the model has adapters \(--lora-rank\), but the checkpoint has none: give"):
        adapted.load_state_dict(plain.state_dict())
    with pytest.raises(UserError, match=r"^the model has no adapters \(--lora-rank\), but the checkpoint has some: gi"):
        plain.load_state_dict(adapted.state_dict())
    with pytest.raises(UserError, match=r"lora_a must have the shape \(3, 16\), but has \(2, 16\)"):
        built(folder, lora_rank=3).load_state_dict(adapted.state_dict())


def test_fingerprints():
    weights = {"a": torch.randn(5, 3, 2), "b": torch.randn(4)}
    assert 0 <= fingerprint(weights) < 2**48
    assert fingerprint(dict(reversed(weights.items()))) == fingerprint(weights)
    half = {name: value.half() for name, value in weights.items()}
    assert fingerprint(half) == fingerprint({name: value.float() for name, value in half.items()})
    others = [
        {"a": weights["a"], "c": weights["b"]},
        {"a": weights["a"].view(5, 2, 3), "b": weights["b"]},
        *({"a": weights["a"] + torch.eye(5)[row].view(5, 1, 1), "b": weights["b"]} for row in (0, 2, 4)),
    ]
    assert len({fingerprint(other) for other in (weights, *others)}) == 6


def test_the_fingerprint_is_that_of_the_file(folder):
    weights = PretrainedEncoder.open(folder).read_weights()
    assert built(folder, lora_rank=2).base_fingerprint == fingerprint(weights)
