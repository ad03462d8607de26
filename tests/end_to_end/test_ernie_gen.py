"""ERNIE-GEN by the command lines: spans, pre-training on plain text, fine-tuning from it, infilling decoding."""

import random
import re

import pytest
import torch
from called import call
from command_output import generated

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint

MODEL = (
    *("--arch", "unilm_tiny", "--encoder-layers", "2", "--encoder-embed-dim", "32", "--encoder-ffn-embed-dim", "64"),
    *("--encoder-attention-heads", "2", "--max-positions", "64"),
)
TRAINING = ("--cpu", "--num-workers", "0", "--lr", "0.003", "--max-tokens", "600", "--no-epoch-checkpoints")
TRAINING += ("--log-format", "simple", "--log-interval", "1")


@pytest.fixture(scope="module")
def text(toy, tmp_path_factory):
    """Documents of letters, tokenized and binarized, and their span vocabulary."""
    folder = tmp_path_factory.mktemp("text")
    rng = random.Random(0)
    for name, documents in (("train", 12), ("valid", 3)):
        lines = []
        for _ in range(documents):
            lines += [" ".join(rng.choices(["a", "b c", "d", "e f g"], k=12)) for _ in range(rng.randint(1, 5))] + [""]
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    words = ("--tokenizer-dir", toy.folder, "--output-dir", "tokens", "--dict", "tokens/dict.txt", "--workers", "1")
    call(folder, "tokenize", "--input", "train.txt", "valid.txt", *words).check_returncode()
    options = ("--only-source", "--srcdict", "tokens/dict.txt", "--destdir", "data", "--workers", "1")
    call(
        folder, "preprocess", "--trainpref", "tokens/train.txt", "--validpref", "tokens/valid.txt", *options
    ).check_returncode()
    words = ("--tokenizer-dir", toy.folder, "--input", "tokens/train.txt", "--output", "spans.txt", "--workers", "1")
    call(folder, "span-vocab", *words).check_returncode()
    return folder


@pytest.fixture
def pretrain(call_command, text):
    def run(*words, status=0):
        task = ("--task", "ernie_gen_pretraining", "--tokens-per-sample", "40")
        return call_command("train", text / "data", *task, *MODEL, *TRAINING, *words, status=status)

    return run


def test_from_plain_text_to_generated_text(pretrain, text, call_command, toy, tmp_path):
    log = pretrain("--span-vocab", text / "spans.txt", "--max-update", "30", "--save-dir", "pretrained").stdout
    assert "from 12 documents; 0 with fewer than 8 tokens are left out" in log
    for flow in ("word", "span"):
        losses = [float(value) for value in re.findall(rf"\b{flow}_loss=([0-9.]+)", log)]
        assert len(losses) >= 30
        assert losses[-1] < losses[0]
    assert re.search(r"valid on 'valid' subset .* span_loss ", log)

    export = ("pretrained/checkpoint_last.pt", "--tokenizer-dir", toy.folder, "--to", "exported")
    call_command("export", "--format", "hugging_face", *export)
    call_command("convert", "exported", "--to", "encoder")
    trained = load_checkpoint(tmp_path / "pretrained" / "checkpoint_last.pt")["model"]
    converted = load_checkpoint(tmp_path / "encoder" / "model.pt")["model"]
    assert all(torch.equal(converted[name], value) for name, value in trained.items())

    tuning = ("--pretrained", "encoder", *toy.layout, "--finetune-method", "infilling", "--noise-prob", "0.3")
    spans = ("--span-vocab", text / "spans.txt", "--word-flow-weight", "0.7", "--label-smoothing", "0")
    log = call_command("train", toy.data, *tuning, *spans, *TRAINING, "--max-update", "5", "--save-dir", "tuned").stdout
    assert "word_loss=" in log and "span_loss=" in log
    state = load_checkpoint(tmp_path / "tuned" / "checkpoint_last.pt")
    assert state["task_state"]["layout"]["finetune_method"] == "infilling"

    (text / "spans.txt").rename(text / "moved.txt")
    try:
        path = ("--path", "tuned/checkpoint_last.pt", "--cpu")
        for options in ((), ("--rank-each-step", "--length-penalty", "gnmt", "--beam", "3")):
            assert sorted(generated(call_command("generate", toy.data, *path, *options).stdout)) == list(range(5))
        missing = call_command("validate", toy.data, *path, "--batch-size", "8", status=2)
        assert "--span-vocab" in missing.stderr  # a checkpoint's own path is not opened
    finally:
        (text / "moved.txt").rename(text / "spans.txt")


def test_resumed_pre_training_repeats_an_uninterrupted_one(pretrain, tmp_path):
    pretrain("--max-update", "6", "--save-dir", "whole", "--seed", "3")
    pretrain("--max-update", "3", "--save-dir", "parts", "--seed", "3")
    pretrain("--max-update", "6", "--save-dir", "parts", "--seed", "3")
    whole, parts = (load_checkpoint(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("whole", "parts"))
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, atol=1e-6, rtol=1e-5)


def test_mistakes(pretrain, call_command, toy):
    done = pretrain("--fragment-budget", "0.9", "--noise-symbol", "[NOISE]", "--save-dir", "x", status=2)
    assert "--fragment-budget must be above 0 and at most 0.5, but is 0.9" in done.stderr
    assert "--noise-symbol must be a symbol of the dictionary, but '[NOISE]' is not" in done.stderr
    words = ("--finetune-method", "masked", "--noise-prob", "0.1", "--span-vocab", "spans", "--word-flow-weight", "2")
    done = call_command("train", toy.data, *MODEL, *toy.layout, *TRAINING, *words, "--save-dir", "x", status=2)
    for problem in (
        "--noise-prob is for --finetune-method causal or infilling, but that is masked",
        "--word-flow-weight is for --finetune-method infilling or blocks, but that is masked",
        "--word-flow-weight must be between 0 and 1, but is 2",
        "--span-vocab is for --finetune-method pseudo_masked or infilling, but that is masked",
    ):
        assert problem in done.stderr
