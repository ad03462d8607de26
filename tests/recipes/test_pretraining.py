"""Pre-training from plain text to an encoder, as ``s2sft pretrain`` runs it, and what it refuses."""

import random
from argparse import Namespace
from itertools import pairwise

import pytest
import torch
from called import call
from hugging_face import save, their_model

from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.recipes import pretraining
from s2sft_fairseq.recipes.pretraining import PRESETS, DeltaLMPretraining
from s2sft_fairseq.tokenization.folder import open_tokenizer

TINY = ("--arch", "unilm_tiny", "--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 64, "--max-positions", 64)
TINY += ("--tokens-per-sample", 40, "--max-tokens", 600, "--update-freq", 1, "--cpu", "--num-workers", 0)


def pretrain(folder, *words):
    return call(folder, "pretrain", *words)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Text of a few documents, and BERT's tokenizer with one letter per word."""
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
    assert (run / "training.png").stat().st_size > 1000
    trained = load_checkpoint(run / "checkpoints" / "checkpoint_last.pt")
    assert trained["cfg"]["model"]["encoder_embed_dim"] == 32
    assert trained["cfg"]["task"]["span_vocab"] == str(folder.resolve() / "out" / "spans.txt")
    encoder = load_checkpoint(run / "encoder" / "model.pt")["model"]
    assert {name: value.shape for name, value in encoder.items()} == {
        name: value.shape for name, value in trained["model"].items()
    }

    # A run that was killed before its last stage does not resume the training, whose four updates are done.
    (run / "encoder").rename(run / "encoder.before")
    last = (run / "checkpoints" / "checkpoint_last.pt").read_bytes()
    done = pretrain(folder, *words, "--", *TINY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing is left to train: 4 updates are done, and --max-update is 4" in done.stdout
    assert (run / "checkpoints" / "checkpoint_last.pt").read_bytes() == last
    assert (run / "encoder" / "model.pt").exists()

    # From another folder, in which the same files have other names.
    words = ("ernie-gen-base", "--text", ".", "--tokenizer-dir", "../vocab", "--output", "../out", "--updates", 4)
    again = pretrain(folder / "text", *words, "--", *TINY)
    assert again.returncode == 0
    assert again.stdout.count("done before") == 4
    # A second training shares the text, and starts from the encoder of the first.
    words = ("ernie-gen-base", "--text", "text", "--output", "further", "--updates", 2, "--word-flow-only")
    done = pretrain(folder, *words, "--encoder", run / "encoder", "--", *TINY[2:])
    assert done.returncode == 0, done.stdout + done.stderr
    assert "find spans" not in done.stdout
    changed = pretrain(folder, *words, "--encoder", run / "encoder", "--seed", 2)
    assert changed.returncode == 2
    assert "holds files that were made with other settings" in changed.stderr
    assert "  seed: before 1, now 2" in changed.stderr


def test_the_preset_of_unilmv2():
    """Table 7 of the paper, and section 4.1."""
    preset = PRESETS["unilmv2-base"]
    assert (preset.lr, preset.updates, preset.warmup) == ("6e-4", 500_000, 24_000)
    options = dict(zip(preset.options[::2], preset.options[1::2], strict=True))
    assert options["--adam-betas"] == "(0.9, 0.98)" and float(options["--adam-eps"]) == 1e-6
    assert options["--clip-norm"] == "0"
    assert preset.model[:2] == ("--arch", "unilm_base") and preset.model[2:4] == ("--relative-position-bins", "32")


def test_deltalm_from_texts_and_pairs(folder, tmp_path):
    """From a published encoder to a folder from which a translation starts."""
    save("xlm-roberta", their_model("xlm-roberta", num_hidden_layers=4), tmp_path / "encoder")
    words = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog"]
    rng = random.Random(0)
    (tmp_path / "pairs").mkdir()
    (tmp_path / "text" / "fr").mkdir(parents=True)
    for split, number in (("train", 12), ("valid", 3)):
        text = "".join(f"{' '.join(rng.choices(words, k=6))}\n\n" for _ in range(number))
        (tmp_path / "text" / "fr" / f"{split}.txt").write_text(text)
        for language in ("de", "en"):
            lines = "".join(f"{' '.join(rng.choices(words, k=4))}\n" for _ in range(number))
            (tmp_path / "pairs" / f"{split}.en-de.{language}").write_text(lines)
    command = ("deltalm-base", "--text", "text", "--pairs", "pairs", "--encoder", "encoder", "--output", "out")
    further = ("--max-positions", 40, "--tokens-per-sample", 30, "--update-freq", 2, "--cpu", "--num-workers", 0)
    done = pretrain(tmp_path, *command, "--updates", 3, "--", *further)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "update 3/3: held out loss" in done.stdout
    made = tmp_path / "out" / "deltalm-base" / "deltalm"
    assert done.stdout.endswith(f"pretrain: the deltalm is {made}\n")
    trained = load_checkpoint(made.parent / "checkpoints" / "checkpoint_last.pt")
    task = trained["cfg"]["task"]
    assert (task["text_languages"], task["lang_pairs"]) == ("fr", "en-de")
    assert (task["span_density"], task["translation_span_density"], task["mean_span_length"]) == (0.15, 0.5, 3.0)
    opened = PretrainedEncoder.open(made)
    assert (opened.model, opened.sizes["encoder_layers"], opened.sizes["max_positions"]) == ("deltalm", 4, 40)
    found = load_checkpoint(made / "model.pt")["model"]
    assert found.keys() == trained["model"].keys() - {"encoder.version", "decoder.version"}
    assert all(torch.equal(value, trained["model"][name]) for name, value in found.items())
    assert "<extra_id_99>" in open_tokenizer(made).dictionary


def test_the_preset_of_deltalm(tmp_path, monkeypatch):
    """Section 2.3 of the paper: batches of 2,048 texts on any number of GPUs, and the other settings."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    preset = PRESETS["deltalm-base"]
    assert (preset.task, preset.updates, preset.warmup, preset.texts) == ("deltalm_pretraining", 600_000, 10_000, 2048)
    for language in ("en", "fr"):
        (tmp_path / "text" / language).mkdir(parents=True)
    names = {"pairs": None, "run": None, "seed": 1, "tokenizer_dir": None, "updates": None, "word_flow_only": False}
    for gpus, device_tokens, expected in (
        (0, 8192, (16, 128)),
        (8, 8192, (16, 16)),
        (32, 16384, (32, 2)),
        (3, 4096, (2, 341)),
    ):
        monkeypatch.setattr(torch.cuda, "device_count", lambda gpus=gpus: gpus)
        options = Namespace(preset="deltalm-base", text=tmp_path / "text", encoder=tmp_path, output=tmp_path,
                            device_tokens=device_tokens, **names)  # fmt: skip
        given = dict(pairwise(DeltaLMPretraining(options, [], call).training()))
        assert (int(given["--batch-size"]), int(given["--update-freq"])) == expected
        assert (given["--arch"], given["--text-languages"], given["--warmup-updates"]) == ("deltalm", "en,fr", "10000")
        assert (given["--adam-betas"], given["--clip-norm"]) == ("(0.9, 0.999)", "1.0")
        assert (given["--tokens-per-sample"], given["--lr-scheduler"]) == ("512", "polynomial_decay")
        assert given["--max-update"] == "600000" and "--lang-pairs" not in given
        # Languages are sampled as in mT5, by D ** 0.3 in every epoch.
        temperatures = [float(given[name]) for name in ("--first-temperature", "--temperature")]
        assert temperatures == pytest.approx([1 / 0.3, 1 / 0.3], rel=1e-4)


TABLE_6 = {"ae+par-rel": True, "ae+par": False, "ae+ar": False, "ae": False, "par": False, "ar": False}


def test_the_presets_of_ablations():
    """UniLMv2's Table 6 with its footnote 2, and ERNIE-GEN's Table 8, word by word and without noise."""
    for name, relative in TABLE_6.items():
        preset = PRESETS[f"unilmv2-table6-{name}"]
        assert (preset.task, preset.lr, preset.updates, preset.warmup) == (
            "unilm_pretraining",
            "1e-4",
            1_000_000,
            10_000,
        )
        options = dict(zip(preset.options[::2], preset.options[1::2], strict=True))
        assert options["--adam-betas"] == "(0.9, 0.999)"
        assert options["--language-model"] == name.removesuffix("-rel")
        assert ("--relative-position-bins" in preset.model) == relative
        assert preset.positions == 256 * (512 if name == "ae" else 666)
    for name in ("typical", "infilling"):
        preset = PRESETS[f"ernie-gen-table8-{name}"]
        options = dict(zip(preset.options[::2], preset.options[1::2], strict=True))
        assert (options["--generation"], options["--noise-prob"], preset.spans) == (name, "0", False)
        assert preset[:6] == PRESETS["ernie-gen-base"][:6]
    # Table 7: its row 1 is ernie-gen-base, with noise of 0.05.
    for name, noise, spans in (("noise", "0", True), ("spans", "0.2", False), ("both", "0", False)):
        preset = PRESETS[f"ernie-gen-table7-without-{name}"]
        options = dict(zip(preset.options[::2], preset.options[1::2], strict=True))
        assert (options["--generation"], options["--noise-prob"], preset.spans) == ("infilling", noise, spans)
        assert preset[:6] == PRESETS["ernie-gen-base"][:6]


def test_the_preset_of_430_gigabytes():
    """Appendix A.1 of ERNIE-GEN: a million updates of the large model, otherwise as with 16 GB."""
    preset, usual = PRESETS["ernie-gen-large-430g"], PRESETS["ernie-gen-large"]
    assert preset.updates == 1_000_000 and preset._replace(updates=usual.updates) == usual


@pytest.fixture
def few_pairs(monkeypatch):
    monkeypatch.setattr(pretraining, "SYNTHETIC_PAIRS", {"train": 60, "valid": 10})


def test_synthetic_pairs_for_an_encoder(few_pairs, tmp_path):
    (tmp_path / "vocab").mkdir()
    symbols = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    (tmp_path / "vocab" / "vocab.txt").write_text("".join(f"{symbol}\n" for symbol in symbols))
    words = ("synthetic", "--tokenizer-dir", "vocab", "--output", "out", "--updates", 4, "--device-tokens", 500)
    sizes = ("--arch", "unilm_tiny", "--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 64, "--max-positions", 100)
    done = pretrain(tmp_path, *words, "--", *sizes, "--cpu", "--num-workers", 0)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "update 4/4: held out loss" in done.stdout
    run = tmp_path / "out" / "synthetic"
    assert PretrainedEncoder.open(run / "encoder").sizes["encoder_embed_dim"] == 32
    trained = load_checkpoint(run / "checkpoints" / "checkpoint_last.pt")
    assert trained["cfg"]["task"]["_name"] == "unilm_seq2seq"
    sources, targets = ((tmp_path / "out" / "tokens" / f"train.{side}").read_text() for side in ("src", "tgt"))
    assert sources.count("\n") == targets.count("\n") == 60
    assert set(sources.split()) <= {*"abcdefghijklmnopqrstuvwxyz", "[MASK]"}


def test_synthetic_pairs_for_deltalm(few_pairs, tmp_path):
    save(
        "xlm-roberta", their_model("xlm-roberta", num_hidden_layers=4, max_position_embeddings=52), tmp_path / "encoder"
    )
    words = ("synthetic-deltalm", "--encoder", "encoder", "--output", "out", "--updates", 3)
    done = pretrain(tmp_path, *words, "--", "--max-tokens", 400, "--update-freq", 1, "--cpu", "--num-workers", 0)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    made = tmp_path / "out" / "synthetic-deltalm" / "deltalm"
    assert PretrainedEncoder.open(made).model == "deltalm"
    task = load_checkpoint(made.parent / "checkpoints" / "checkpoint_last.pt")["cfg"]["task"]
    assert task["_name"] == "deltalm_seq2seq"


def test_mistakes(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    words = ("ernie-gen-base", "--text", "empty", "--encoder", "no/such/folder", "--output", "out", "--updates", 0)
    done = pretrain(tmp_path, *words)
    assert done.returncode == 2
    assert "--updates must be at least 1, but is 0; " in done.stderr
    assert "--encoder must be a folder, or a name on the hub, but no/such/folder is neither" in done.stderr
    assert "--text must hold train.txt and valid.txt, but empty does not" in done.stderr
    done = pretrain(
        tmp_path, "unilmv2-base", "--text", "empty", "--encoder", "empty", "--pairs", "empty", "--output", "o"
    )
    assert "--pairs is for deltalm-base, but the preset is unilmv2-base; --text must hold train.txt" in done.stderr
    done = pretrain(tmp_path, "synthetic", "--text", "empty", "--encoder", "empty", "--output", "o")
    assert "--text must be left out with synthetic, which makes its pairs, but is empty" in done.stderr
    done = pretrain(tmp_path, "unilmv2-base", "--encoder", "empty", "--output", "o")
    assert "unilmv2-base needs --text" in done.stderr
    (tmp_path / "pairs").mkdir()
    (tmp_path / "pairs" / "train.en-de.en").touch()
    done = pretrain(
        *(tmp_path, "deltalm-base", "--text", "empty", "--tokenizer-dir", "empty", "--pairs", "pairs", "--output", "o")
    )
    assert "deltalm-base needs --encoder, from whose layers DeltaLM begins, not --tokenizer-dir" in done.stderr
    assert "--text must hold LANGUAGE/train.txt and LANGUAGE/valid.txt, but empty does not" in done.stderr
    assert "--pairs must hold train.en-de.de and valid.en-de.en and valid.en-de.de, but pairs does not" in done.stderr
    failed = pretrain(
        folder, "ernie-gen-base", "--text", "text", "--tokenizer-dir", "vocab", "--output", "out", "--run", "wrong",
        "--", *TINY, "--fragment-budget", 2,
    )  # fmt: skip
    assert failed.returncode == 2
    assert "--fragment-budget must be above 0 and at most 0.5, but is 2" in failed.stderr
    assert "Traceback" not in failed.stderr
