"""Pre-training from plain text to an encoder, as ``s2sft pretrain`` runs it; what it refuses."""

import os
import random
import runpy
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.commands.pretrain import Pretraining

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "s2sft_fairseq" / "commands" / "pretrain.py"
TINY = ("--arch", "unilm_tiny", "--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 64, "--max-positions", 64)
TINY += ("--tokens-per-sample", 40, "--max-tokens", 600, "--update-freq", 1, "--cpu", "--num-workers", 0)


def pretrain(folder, *words):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "s2sft_fairseq", "pretrain", *map(str, words)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Text of a few documents, and BERT's tokenizer with a letter a word."""
    folder = tmp_path_factory.mktemp("pretrain")
    rng = random.Random(0)
    (folder / "text").mkdir()
    for name, documents in (("train", 12), ("valid", 3)):
        lines = []
        for _ in range(documents):
            lines += [" ".join(rng.choices("abcdefg", k=15)) for _ in range(rng.randint(1, 5))] + [""]
        (folder / "text" / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    (folder / "vocab").mkdir()
    symbols = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefg"]
    (folder / "vocab" / "vocab.txt").write_text("".join(f"{symbol}\n" for symbol in symbols))
    return folder


def test_from_text_to_encoder(folder):
    words = ("ernie-gen-base", "--text", "text", "--tokenizer-dir", "vocab", "--output", "out", "--updates", 4)
    done = pretrain(folder, *words, "--", *TINY)
    assert done.returncode == 0, done.stdout + done.stderr
    for stage in ("tokenize", "find spans", "binarize", "train"):
        assert f"pretrain: {stage} ..." in done.stdout
    assert "update 4/4: held out loss" in done.stdout
    run = folder / "out" / "ernie-gen-base"
    assert (run / "loss.png").stat().st_size > 1000
    trained = load_checkpoint(run / "checkpoints" / "checkpoint_last.pt")
    assert trained["cfg"]["model"]["encoder_embed_dim"] == 32
    assert trained["cfg"]["task"]["span_vocab"] == str(folder.resolve() / "out" / "spans.txt")
    encoder = load_checkpoint(run / "encoder" / "model.pt")["model"]
    assert {name: value.shape for name, value in encoder.items()} == {
        name: value.shape for name, value in trained["model"].items()
    }

    # From another folder, which names the same files in another way.
    words = ("ernie-gen-base", "--text", ".", "--tokenizer-dir", "../vocab", "--output", "../out", "--updates", 4)
    again = pretrain(folder / "text", *words, "--", *TINY)
    assert again.returncode == 0
    assert again.stdout.count("done before") == 4
    # A second training shares the text, and begins with what the first one made.
    words = ("ernie-gen-base", "--text", "text", "--output", "further", "--updates", 2, "--word-flow-only")
    done = pretrain(folder, *words, "--encoder", run / "encoder", "--", *TINY[2:])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "find spans" not in done.stdout
    changed = pretrain(folder, *words, "--encoder", run / "encoder", "--seed", 2)
    assert changed.returncode == 1
    assert "holds files of other settings" in changed.stderr
    assert "  seed: before 1, now 2" in changed.stderr


def test_the_preset_of_unilmv2():
    """Table 7 of its paper, and section 4.1."""
    preset = runpy.run_path(str(SCRIPT))["PRESETS"]["unilmv2-base"]
    assert (preset.lr, preset.updates, preset.warmup) == ("6e-4", 500_000, 24_000)
    options = dict(zip(preset.options[::2], preset.options[1::2], strict=True))
    assert options["--adam-betas"] == "(0.9, 0.98)" and float(options["--adam-eps"]) == 1e-6
    assert options["--clip-norm"] == "0"
    assert preset.model[:2] == ("--arch", "unilm_base") and preset.model[2:4] == ("--relative-position-bins", "32")


def test_mistakes(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    words = ("ernie-gen-base", "--text", "empty", "--encoder", "none", "--output", "out", "--updates", 0)
    done = pretrain(tmp_path, *words)
    assert done.returncode == 2
    assert "--updates must be at least 1, but is 0; --encoder must be a folder, but none is none" in done.stderr
    assert "--text must hold train.txt and valid.txt, but empty does not" in done.stderr
    failed = pretrain(
        folder, "ernie-gen-base", "--text", "text", "--tokenizer-dir", "vocab", "--output", "out", "--run", "wrong",
        "--", *TINY, "--fragment-budget", 2,
    )  # fmt: skip
    assert failed.returncode == 2
    assert "--fragment-budget must be above 0 and at most 0.5, but is 2" in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.parametrize(
    ("file", "made"),
    [
        ("begin.settings", "begin"),
        ("text.settings", "tokens"),
        ("settings", "checkpoints/checkpoint_last.pt"),
        ("settings", "encoder"),
    ],
)
def test_settings_of_a_stage_that_failed_are_forgotten(tmp_path, file, made):
    options = Namespace(preset="ernie-gen-base", output=tmp_path, run=None, word_flow_only=False, tokenizer_dir=None)
    stages = Pretraining(options, [])
    stages.remember(tmp_path / file, encoder="wrong", text="same")
    stages.remember(tmp_path / file, encoder="right", text="same")
    (tmp_path / made).mkdir(parents=True)
    stages.remember(tmp_path / file, encoder="right", text="same")
    with pytest.raises(SystemExit, match=r"holds files of other settings.*\n  encoder: before right, now other$"):
        stages.remember(tmp_path / file, encoder="other", text="same")
