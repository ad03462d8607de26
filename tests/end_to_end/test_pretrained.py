"""From a Hugging Face checkpoint to a fine-tuned one, which needs neither the encoder's folder nor the options."""

import json
import shutil

import pytest
import torch
from command_output import generated

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.commands.convert import main as convert

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.fixture(scope="module")
def hugging_face(toy, tmp_path_factory):
    """A random BERT as saved by transformers, with the vocabulary of the toy task."""
    transformers = pytest.importorskip("transformers", reason="makes the tiny BERT: pip install transformers")
    folder = tmp_path_factory.mktemp("bert")
    size = len((toy.folder / "vocab.txt").read_text().splitlines())
    torch.manual_seed(1)
    config = transformers.BertConfig(vocab_size=size, max_position_embeddings=64, **SIZES)
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    shutil.copy(toy.folder / "vocab.txt", folder)
    return folder


@pytest.fixture(scope="module")
def encoder(hugging_face, tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted") / "encoder"
    convert([str(hugging_face), "--to", str(folder)])
    return folder


@pytest.fixture
def fine_tune(call_command, toy, tmp_path):
    """Fine-tune for a few updates, from the folder in ``--pretrained``."""

    def run(*words, status=0):
        options = ("--arch", "unilm", *toy.layout, "--criterion", "mask_attention", "--optimizer", "adam", "--cpu")
        options += ("--lr", "0.001", "--batch-size", "20", "--max-update", "3", "--num-workers", "0")
        saving = ("--save-dir", "tuned", "--no-epoch-checkpoints")
        return call_command("train", toy.data, *options, *saving, *words, status=status)

    return run


def test_starts_from_the_converted_encoder(fine_tune, encoder, hugging_face, tmp_path):
    # At a learning rate of 0, parameters do not change.
    log = fine_tune("--pretrained", encoder, "--lr", "0", "--finetune-method", "masked").stdout
    assert f"parameters from {encoder}" in log
    tuned = load_checkpoint(tmp_path / "tuned" / "checkpoint_last.pt")
    original = load_checkpoint(encoder / "model.pt")["model"]
    assert tuned["model"].keys() == original.keys()
    assert all(torch.equal(tuned["model"][name], value) for name, value in original.items())
    sizes = json.loads((hugging_face / "config.json").read_text())
    assert tuned["cfg"]["model"]["encoder_layers"] == sizes["num_hidden_layers"]
    assert tuned["task_state"]["layout"]["finetune_method"] == "masked"


def test_needs_nothing_but_data_and_encoder(call_command, toy, encoder, tmp_path):
    words = (*toy.layout, "--max-update", "2", "--save-dir", "tuned", "--cpu")
    log = call_command("train", toy.data, "--pretrained", encoder, *words).stdout
    assert f"parameters from {encoder}" in log
    cfg = load_checkpoint(tmp_path / "tuned" / "checkpoint_last.pt")["cfg"]
    assert cfg["optimization"]["lr"] == [5e-5] and cfg["optimization"]["clip_norm"] == 1.0
    assert cfg["criterion"]["_name"] == "mask_attention" and cfg["optimizer"]["_name"] == "fused_adamw"
    assert cfg["dataset"]["max_tokens"] == 4096


def test_the_segments_of_unilm(fine_tune, hugging_face, tmp_path):
    """Its configuration names them, and training uses them unless an option says otherwise."""
    transformers = pytest.importorskip("transformers", reason="makes the tiny BERT: pip install transformers")
    source = tmp_path / "unilm"
    size = len((hugging_face / "vocab.txt").read_text().splitlines())
    config = transformers.BertConfig(vocab_size=size, max_position_embeddings=64, type_vocab_size=6, **SIZES)
    transformers.BertForMaskedLM(config).save_pretrained(source)
    shutil.copy(hugging_face / "vocab.txt", source)
    described = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**described, "source_type_id": 4, "target_type_id": 5}))
    convert([str(source), "--to", str(tmp_path / "encoder")])
    fine_tune("--pretrained", tmp_path / "encoder")
    layout = load_checkpoint(tmp_path / "tuned" / "checkpoint_last.pt")["task_state"]["layout"]
    assert (layout["source_segments"], layout["target_segment"]) == ("4", 5)
    fine_tune("--pretrained", tmp_path / "encoder", "--source-segments", "0", "--save-dir", "other")
    layout = load_checkpoint(tmp_path / "other" / "checkpoint_last.pt")["task_state"]["layout"]
    assert (layout["source_segments"], layout["target_segment"]) == ("0", 5)


@pytest.mark.parametrize("method", ["causal", "pseudo_masked"])
def test_generates_without_folder_and_options(fine_tune, encoder, call_command, toy, tmp_path, monkeypatch, method):
    moved = shutil.copytree(encoder, tmp_path / "moved")
    fine_tune("--pretrained", moved, "--finetune-method", method)
    shutil.rmtree(moved)
    before = call_command("generate", toy.data, "--path", "tuned/checkpoint_last.pt", "--cpu").stdout
    assert sorted(generated(before)) == list(range(5))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    path = tmp_path / "tuned" / "checkpoint_last.pt"
    assert generated(call_command("generate", toy.data, "--path", path, "--cpu").stdout) == generated(before)
    stated = ("--finetune-method", method, *toy.layout)
    assert generated(call_command("generate", toy.data, "--path", path, "--cpu", *stated).stdout) == generated(before)


def test_resumes_with_and_without_the_folder(fine_tune, encoder, tmp_path):
    fine_tune("--pretrained", encoder)
    assert "(epoch 1 @ 3 updates)" in fine_tune("--pretrained", encoder, "--max-update", "4").stdout
    sizes = ("--encoder-layers", "2", "--encoder-embed-dim", "32", "--encoder-attention-heads", "2")
    sizes += ("--encoder-ffn-embed-dim", "64", "--max-positions", "64")
    assert "(epoch 1 @ 4 updates)" in fine_tune(*sizes, "--max-update", "5").stdout
    assert load_checkpoint(tmp_path / "tuned" / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 5


def test_a_checkpoint_without_its_task_state(trained, toy, call_command, tmp_path):
    model = trained("pseudo_masked")
    state = load_checkpoint(model.best)
    del state["task_state"]
    torch.save(state, tmp_path / "bare.pt")
    bare = ("generate", toy.data, "--path", "bare.pt", "--cpu")
    done = call_command(*bare, status=2)
    assert "error: bare.pt: the checkpoint does not say how it was fine-tuned (it has no task state)" in done.stderr
    assert "give --finetune-method (blocks, causal, infilling, masked, pseudo_masked)" in done.stderr
    assert "Traceback" not in done.stderr
    stated = call_command(*bare, "--finetune-method", "pseudo_masked", *toy.layout).stdout
    assert generated(stated) == generated(call_command("generate", toy.data, "--path", model.best, "--cpu").stdout)


def test_an_encoder_that_does_not_fit(fine_tune, encoder, tmp_path):
    done = fine_tune("--pretrained", "nowhere", status=2)
    assert "--pretrained nowhere must be a folder written by 's2sft convert', but lacks" in done.stderr
    done = fine_tune("--pretrained", encoder, "--encoder-layers", "3", status=2)
    assert "--encoder-layers is 3, but the pretrained encoder has 2" in done.stderr
    damaged = shutil.copytree(encoder, tmp_path / "damaged")
    weights = (damaged / "model.pt").read_bytes()
    (damaged / "model.pt").write_bytes(weights[: len(weights) // 2])
    done = fine_tune("--pretrained", damaged, status=2)
    assert f"{damaged / 'model.pt'}" in done.stderr and "truncated or damaged" in done.stderr
    assert not (tmp_path / "tuned" / "checkpoint_last.pt").exists()
