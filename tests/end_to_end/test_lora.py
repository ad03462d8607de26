"""Adapters by the command lines: trained, resumed, decoded, moved, exported; the encoder is not saved again."""

import shutil

import pytest
import torch
from command_output import generated

from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.checkpoints.pretrained import write_pretrained
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import SIZES, UnilmConfig, complete_sizes

LORA = ("--lora-rank", "4", "--lora-targets", "all", "--lora-dropout", "0.1")


@pytest.fixture
def encoder(toy, tmp_path):
    """The folder of a random encoder."""
    cfg = UnilmConfig(
        encoder_layers=2,
        encoder_embed_dim=32,
        encoder_ffn_embed_dim=64,
        encoder_attention_heads=2,
        max_positions=64,
    )
    complete_sizes(cfg)
    symbols = toy.dictionary.read_text().splitlines()
    torch.manual_seed(1)
    model = UnilmModel(cfg, vocab_size=len(symbols), pad=0)
    sizes = {name: getattr(cfg, name) for name in SIZES}
    write_pretrained(tmp_path / "encoder", Conversion("BERT", model.state_dict(), sizes))
    shutil.copy(toy.dictionary, tmp_path / "encoder")
    shutil.copy(toy.folder / "vocab.txt", tmp_path / "encoder")
    return tmp_path / "encoder"


@pytest.fixture
def fine_tune(call_command, toy, encoder):
    """Train adapters of the encoder up to an update."""

    def run(until, *words, folder="tuned", status=0):
        options = ("--pretrained", encoder, *LORA, *toy.layout, "--lr", "0.01", "--batch-size", 20, "--cpu")
        options += ("--max-update", until, "--num-workers", 0, "--no-epoch-checkpoints", "--save-dir", folder)
        return call_command("train", toy.data, *options, "--log-format", "simple", *words, status=status)

    return run


def decoded(call_command, toy, path, *words):
    return generated(call_command("generate", toy.data, "--path", path, "--cpu", *words).stdout)


def test_trains_and_resumes_adapters_alone(fine_tune, tmp_path, encoder):
    before = (encoder / "model.pt").read_bytes()
    assert "parameters are trained" in fine_tune(6).stdout
    fine_tune(3, folder="halves")
    assert "(epoch 1 @ 3 updates)" in fine_tune(6, folder="halves").stdout
    whole, halves = (load_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("tuned", "halves"))
    assert all(torch.equal(halves["model"][name], value) for name, value in whole["model"].items())
    assert {name.rpartition(".")[2] for name in whole["model"]} == {"lora_a", "lora_b", "base_fingerprint"}
    assert all(value.abs().sum() > 0 for value in whole["model"].values())
    assert len(whole["last_optimizer_state"]["state"]) == len(whole["model"]) - 1
    assert whole["cfg"]["model"]["pretrained"] == str(encoder)
    assert (encoder / "model.pt").read_bytes() == before


def test_decodes_with_a_moved_encoder(fine_tune, call_command, toy, encoder, tmp_path, monkeypatch):
    fine_tune(20)
    path = tmp_path / "tuned" / "checkpoint_last.pt"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    expected = decoded(call_command, toy, path)
    assert sorted(expected) == list(range(5))
    validated = call_command("validate", toy.data, "--path", path, "--cpu", "--batch-size", 8).stdout
    assert "valid on 'valid' subset | loss" in validated
    encoder.rename(tmp_path / "moved")
    error = call_command("generate", toy.data, "--path", path, "--cpu", status=2).stderr
    assert (
        f"error: {path}: --pretrained {encoder} must be a folder written by 's2sft convert', but lacks model.pt"
        in error
    )
    moved = ("--model-overrides", str({"pretrained": "../moved"}))
    assert moved[0] in error and "Traceback" not in error
    assert decoded(call_command, toy, path, *moved) == expected
    raw = ("--tokenizer-dir", "../moved", "--input", toy.raw / "test.src", "--output", "out")
    call_command("generate", "--path", path, *raw, "--cpu", *moved)
    assert len((tmp_path / "elsewhere" / "out").read_text().splitlines()) == 5


def test_exports_merged_weights(fine_tune, call_command, toy, encoder, tmp_path):
    pytest.importorskip("safetensors", reason="is what export writes")
    fine_tune(20)
    expected = decoded(call_command, toy, "tuned/checkpoint_last.pt")
    encoder.rename(tmp_path / "moved")
    theirs = ("--format", "hugging_face")
    words = ("tuned/checkpoint_last.pt", "--tokenizer-dir", "moved", "--to", "exported", *theirs)
    assert "adapters need the encoder" in call_command("export", *words, status=2).stderr
    call_command("export", *words, "--pretrained", "moved")
    call_command("convert", "exported", "--to", "again", "--finetune-method", "pseudo_masked")
    assert decoded(call_command, toy, "again/model.pt", *toy.layout) == expected
    call_command("export", *words[:3], "--pretrained", "moved", "--to", "model")
    (tmp_path / "moved").rename(tmp_path / "gone")
    assert decoded(call_command, toy, "model") == expected
    (tmp_path / "gone").rename(tmp_path / "moved")
    error = call_command("export", "moved", *theirs, "--to", "other", "--pretrained", "moved", status=2).stderr
    assert "error: --pretrained is for checkpoints with adapters (--lora-rank), but moved/model.pt has none" in error


def test_another_encoder_is_refused(fine_tune, call_command, toy, encoder):
    fine_tune(2)
    state = load_checkpoint(encoder / "model.pt")
    state["model"]["layers.1.fc2.weight"][0, 0] += 1
    torch.save(state, encoder / "model.pt")
    for error in (
        call_command("generate", toy.data, "--path", "tuned/checkpoint_last.pt", "--cpu", status=2).stderr,
        fine_tune(3, status=2).stderr,
    ):
        assert f"the adapters were trained on another encoder than {encoder}, whose weights may have" in error
        assert "Traceback" not in error


def test_options_that_do_not_fit(fine_tune, call_command, toy):
    fine_tune(2)
    error = fine_tune(3, "--lora-rank", 0, status=2).stderr
    assert "--lora-rank is 0, but was 4 (--reset-optimizer)" in error
    error = fine_tune(3, "--lora-rank", 0, "--reset-optimizer", status=2).stderr
    assert "error: the model has no adapters (--lora-rank), but the checkpoint has some" in error
    sizes = ("--max-positions", 64, *toy.layout, "--max-update", 1, "--cpu")
    error = call_command("train", toy.data, *sizes, "--lora-rank", -1, "--lora-alpha", 0, status=2).stderr
    assert "--lora-rank must be at least 0, but is -1" in error and "--lora-alpha must be positive, but is 0" in error
    error = call_command("train", toy.data, *sizes, "--lora-rank", 4, status=2).stderr
    assert "error: --lora-rank needs --pretrained: adapters are trained beside an encoder" in error
