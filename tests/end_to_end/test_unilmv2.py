"""UniLMv2 by the command lines: pre-training on plain text, fine-tuning from it, generated text."""

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
    """Documents of letters in two shards, tokenized and binarized."""
    folder = tmp_path_factory.mktemp("text")
    rng = random.Random(0)
    for name, documents in (("one", 8), ("two", 6), ("valid", 3)):
        lines = []
        for _ in range(documents):
            lines += [" ".join(rng.choices(["a", "b c", "d", "e f g"], k=12)) for _ in range(rng.randint(1, 5))] + [""]
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    words = ("--tokenizer-dir", toy.folder, "--output-dir", "tokens", "--dict", "tokens/dict.txt", "--workers", "1")
    call(folder, "tokenize", "--input", "one.txt", "two.txt", "valid.txt", *words).check_returncode()
    for shard in ("one", "two"):
        options = ("--only-source", "--srcdict", "tokens/dict.txt", "--destdir", shard, "--workers", "1")
        sets = ("--trainpref", f"tokens/{shard}.txt", "--validpref", "tokens/valid.txt")
        call(folder, "preprocess", *sets, *options).check_returncode()
    return folder


@pytest.fixture
def pretrain(call_command, text):
    def run(*words, status=0):
        task = ("--task", "unilm_pretraining", "--tokens-per-sample", "40", "--label-smoothing", "0")
        return call_command("train", f"{text}/one:{text}/two", *task, *MODEL, *TRAINING, *words, status=status)

    return run


def test_from_plain_text_to_generated_text(pretrain, call_command, toy, tmp_path):
    log = pretrain("--max-update", "30", "--save-dir", "pretrained", "--relative-position-bins", "32").stdout
    assert "from 8 documents" in log and "from 6 documents" in log
    for flow in ("ae", "par"):
        losses = [float(value) for value in re.findall(rf"\b{flow}_loss=([0-9.]+)", log)]
        assert len(losses) >= 30
        assert losses[-1] < losses[0]
    assert re.search(r"valid on 'valid' subset .* par_loss ", log)

    words = ("--tokenizer-dir", toy.folder, "--format", "hugging_face", "--to", "exported")
    call_command("export", "pretrained/checkpoint_last.pt", *words)
    call_command("convert", "exported", "--to", "encoder")
    trained = load_checkpoint(tmp_path / "pretrained" / "checkpoint_last.pt")["model"]
    converted = load_checkpoint(tmp_path / "encoder" / "model.pt")["model"]
    assert all(torch.equal(converted[name], value) for name, value in trained.items())

    tuning = ("--pretrained", "encoder", *toy.layout, "--finetune-method", "pseudo_masked")
    call_command("train", toy.data, *tuning, *TRAINING, "--max-update", "3", "--save-dir", "tuned")
    # The checkpoint itself gives the same start as the folder.
    tuning = ("--pretrained", "pretrained/checkpoint_last.pt", *tuning[2:])
    call_command("train", toy.data, *tuning, *TRAINING, "--max-update", "3", "--save-dir", "at_once")
    one, two = (load_checkpoint(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("tuned", "at_once"))
    assert one.keys() == two.keys() and all(torch.equal(one[name], value) for name, value in two.items())
    path = ("--path", "tuned/checkpoint_last.pt", "--cpu")
    assert sorted(generated(call_command("generate", toy.data, *path).stdout)) == list(range(5))


def test_pre_training_starts_from_a_checkpoint(pretrain):
    """A training with a second objective starts from the checkpoint of the first."""
    pretrain("--max-update", "2", "--save-dir", "first", "--language-model", "ae")
    log = pretrain("--pretrained", "first/checkpoint_last.pt", "--max-update", "2", "--save-dir", "second").stdout
    assert "par_loss=" in log


def test_mistakes(pretrain):
    done = pretrain("--mask-ratio", "1", "--block-lengths", "6-2", "--save-dir", "x", status=2)
    assert "--mask-ratio must be above 0 and below 1, but is 1" in done.stderr
    assert "--block-lengths must be a range of at least 1, such as 2-6, but is 6-2" in done.stderr
