"""DeltaLM by the command lines: from an XLM-R-like encoder through pre-training to translations."""

import random
import re

import numpy as np
import pytest
import torch
from command_output import generated
from hugging_face import save, their_model
from official_deltalm import write_official

from s2sft_fairseq import Seq2Seq
from s2sft_fairseq.checkpoints.averaging import average_checkpoints
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.convert import ConvertOptions, convert

WORDS = ["the", "quick", "brown", "fox", "jumps", "over", "lazy", "dog"]
TRAINING = (
    *("--cpu", "--num-workers", "0", "--lr", "0.003", "--max-tokens", "400", "--no-epoch-checkpoints"),
    *("--log-format", "simple", "--log-interval", "1"),
)
OWN = ("--max-positions", "40")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    """A converted encoder with sentinels and language tokens, and the tokenizer's files."""
    folder = tmp_path_factory.mktemp("encoder")
    save("xlm-roberta", their_model("xlm-roberta", num_hidden_layers=4), folder / "theirs")
    convert(folder / "theirs", folder / "ours", ConvertOptions(add_token=("__en__", "__de__"), sentinels=20))
    return folder / "ours"


@pytest.fixture
def data(encoder, call_command, tmp_path):
    """English, German (English backwards), both directions, and plain text of both languages."""
    rng = random.Random(1)
    raw = tmp_path / "raw"
    raw.mkdir()
    for split, number in (("train", 40), ("valid", 6), ("test", 5)):
        lines = [rng.choices(WORDS, k=rng.randint(2, 4)) for _ in range(number)]
        (raw / f"{split}.en").write_text("".join(f"{' '.join(line)}\n" for line in lines))
        (raw / f"{split}.de").write_text("".join(f"{' '.join(line[::-1])}\n" for line in lines))
    for language in ("en", "de"):
        text = [f"{' '.join(rng.choices(WORDS, k=8))}\n\n" for _ in range(12)]
        (raw / f"text.{language}").write_text("".join(text))
    files = [f"raw/{split}.{language}" for split in ("train", "valid", "test", "text") for language in ("en", "de")]
    call_command("tokenize", "--tokenizer-dir", encoder, "--input", *files, "--output-dir", "tokens", "--workers", 1)
    pairs = ("--trainpref", "tokens/train", "--validpref", "tokens/valid", "--testpref", "tokens/test")
    dictionary = ("--srcdict", encoder / "dict.txt", "--workers", 1)
    call_command("preprocess", "-s", "en", "-t", "de", *pairs, "--joined-dictionary", *dictionary, "--destdir", "data")
    for language in ("en", "de"):
        (tmp_path / f"tokens/text.{language}").rename(tmp_path / f"tokens/{language}.txt")
        text = ("--trainpref", f"tokens/{language}.txt", "--validpref", f"tokens/{language}.txt")
        call_command("preprocess", "--only-source", *text, *dictionary, "--destdir", f"data/{language}")
    return tmp_path / "data"


def losses(log: str) -> list[float]:
    return [float(value) for value in re.findall(r"\| train_inner \|.*?\bloss=([0-9.]+)", log)]


def test_from_an_encoder_to_translations(data, encoder, call_command, tmp_path):
    """Pre-train from the encoder, fine-tune on several languages, and generate from binarized and raw text."""
    options = ("--pretrained", encoder, *OWN, "--tokens-per-sample", 30, "--max-update", 12, "--save-dir", "first")
    task = ("--task", "deltalm_pretraining", "--text-languages", "en,de", "--lang-pairs", "en-de")
    log = call_command("train", data, *task, *options, *TRAINING).stdout
    assert "loaded all" in log and losses(log)[-1] < losses(log)[0]
    assert "train, epoch 1: temperature 1; examples: en " in log
    state = load_checkpoint(tmp_path / "first" / "checkpoint_last.pt")
    settled = state["cfg"]["model"]
    settled = settled if isinstance(settled, dict) else vars(settled)
    assert settled["pretrained"] is None and settled["encoder_layers"] == 4 and settled["max_positions"] == 40

    (tmp_path / "first" / "checkpoint_last.pt").rename(tmp_path / "deltalm.pt")
    tuning = ("--pretrained", "deltalm.pt", "--lang-pairs", "en-de,de-en", "--language-token", "__{}__")
    bleu = ("--eval-bleu", "--eval-bleu-remove-bpe", "sentencepiece", "--eval-bleu-args", '{"beam": 2, "max_len_b": 8}')
    arch = (
        "--arch",
        "deltalm",
        "--text-languages",
        "de",
        "--tokens-per-sample",
        30,
        "--best-checkpoint-metric",
        "bleu_de-en",
    )
    words = (
        "train",
        data,
        *tuning,
        *bleu,
        *arch,
        *TRAINING,
        "--maximize-best-checkpoint-metric",
        "--save-dir",
        "tuned",
    )
    log = call_command(*words, "--max-update", 8).stdout
    assert re.search(r"valid on 'valid' subset .* bleu_en-de [0-9.]+ \| bleu_de-en [0-9.]+ \| bleu [0-9.]+", log)
    log = call_command(*words, "--max-update", 10).stdout
    assert "Loaded checkpoint" in log and len(losses(log)) == 2
    (tmp_path / "deltalm.pt").unlink()

    path = ("--path", "tuned/checkpoint_last.pt", "--cpu", "--beam", 3, "--max-len-b", 8)
    found = generated(call_command("generate", data, *path, "-s", "de", "-t", "en").stdout)
    assert sorted(found) == list(range(5))
    assert sorted(generated(call_command("generate", data, *path, "-s", "de", "-t", "en", "--bf16").stdout)) == [
        *range(5)
    ]
    call_command(
        *("generate", *path, "-t", "en", "--tokenizer-dir", encoder, "--input", "raw/test.de", "--output", "out.txt")
    )
    lines = (tmp_path / "out.txt").read_text().splitlines()
    assert [re.sub(r"\W", "", line) for line in lines] == [re.sub(r"\W", "", found[i][0]) for i in range(5)]
    call_command("export", "tuned/checkpoint_last.pt", "--tokenizer-dir", encoder, "--to", "model")
    search = ("--cpu", "--beam", 3, "--max-len-b", 8, "-t", "en")
    call_command("generate", "--path", "model", *search, "--input", "raw/test.de", "--output", "folder.txt")
    assert (tmp_path / "folder.txt").read_text().splitlines() == lines
    check_in_python(tmp_path / "model", (tmp_path / "raw" / "test.de").read_text().splitlines(), lines)
    further = (*tuning[2:], "--arch", "deltalm", "--max-update", 1, "--save-dir", "on")
    call_command("train", data, "--pretrained", "model", *TRAINING, *further)
    refused = call_command(
        "generate", *path, "--tokenizer-dir", encoder, "--input", "raw/test.de", "--output", "x", status=2
    )
    assert "--target-lang must be a language of the checkpoint, de, en; it is not given" in refused.stderr


def check_in_python(folder, sources, expected) -> None:
    """Check that texts are the same, and that one pass gives the log-probabilities of the search, also with padding."""
    model = Seq2Seq.from_pretrained(folder, device="cpu")
    found = model.hypotheses(sources, beam=3, max_len=8, target_lang="en")
    assert [best.text for best, *_ in found] == expected
    one_pass, index = model._one_pass("en"), model._loaded.tokenizer.dictionary.index
    for source, (best, *_) in zip(model._source_ids(sources, one_pass.form), found, strict=True):
        tokens = np.array([index(token) for token in best.tokens])
        with torch.inference_mode():
            assert one_pass.log_probs(source, tokens).tolist() == pytest.approx(best.log_probs, abs=1e-4)
    words = "dog lazy the over"
    (states,) = model.encode("fox brown", target_lang="en")
    beside, _ = model.encode(["fox brown", words], target_lang="en")
    torch.testing.assert_close(beside, states)
    attention = model.attention("fox brown", words, target_lang="en")
    assert attention.source[0] == "__en__" and attention.target[-1] == attention.source[-1] == "</s>"
    assert attention.weights.shape == (len(attention.target), len(attention.source))
    assert len(states) == len(attention.source)
    torch.testing.assert_close(attention.weights.sum(1), torch.ones(len(attention.target)))
    assert not torch.equal(attention.weights, model.attention("fox brown", words, layer=0, target_lang="en").weights)
    (whole,) = model.score("fox brown", words, target_lang="en")
    (beginning,) = model.score("fox brown", "dog lazy", target_lang="en")
    assert whole.log_probs[: len(beginning.tokens) - 1] == pytest.approx(beginning.log_probs[:-1], abs=1e-5)
    assert model.attention("fox brown", words, target_lang="de").source[0] == "__de__"
    with pytest.raises(UserError, match="stream is for encoder-only models"):
        model.stream("fox")
    for call in (model.encode, model.generate, lambda text, **language: model.score(text, text, **language)):
        with pytest.raises(UserError, match=r"target_lang must be a language of the model \(de, en\), but is 'fr'"):
            call("fox", target_lang="fr")


def test_the_translation_task_of_fairseq(data, encoder, call_command, tmp_path):
    """It reads an XLM-R-like dictionary unchanged, so it needs no task of ours, not even to start from a checkpoint."""
    task = ("--task", "translation", "--arch", "deltalm", "--criterion", "label_smoothed_cross_entropy")
    words = ("train", data, *task, *TRAINING, "--optimizer", "adam", "--required-batch-size-multiple", 1)
    log = call_command(*words, "--pretrained", encoder, "--max-update", 4, "--save-dir", "first").stdout
    assert len(losses(log)) == 4
    first = tmp_path / "first" / "checkpoint_last.pt"
    again = call_command(
        *words, *OWN, *sizes(first), "--finetune-from-model", first, "--max-update", 1, "--save-dir", "b"
    )
    assert losses(again.stdout)[0] < losses(log)[0]
    found = generated(
        call_command("generate", data, "--path", first, "--cpu", "--required-batch-size-multiple", 1).stdout
    )
    assert sorted(found) == list(range(5))
    one, two = (load_checkpoint(tmp_path / folder / "checkpoint_last.pt")["model"] for folder in ("first", "b"))
    state = average_checkpoints([first, tmp_path / "b" / "checkpoint_last.pt"])
    torch.save(state, tmp_path / "average.pt")
    assert (tmp_path / "average.pt").stat().st_size < 2 * first.stat().st_size
    averaged = generated(
        call_command("generate", data, "--path", "average.pt", "--cpu", "--required-batch-size-multiple", 1).stdout
    )
    assert sorted(averaged) == list(range(5))
    assert one.keys() == two.keys() and not torch.equal(
        one["encoder.embed_tokens.weight"], two["encoder.embed_tokens.weight"]
    )


def sizes(path) -> list:
    """Return the size options of a checkpoint's model."""
    options = load_checkpoint(path)["cfg"]["model"]
    options = options if isinstance(options, dict) else vars(options)
    names = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads")
    return [word for name in names for word in (f"--{name.replace('_', '-')}", options[name])]


def test_interactive_lines(data, encoder, call_command, tmp_path, monkeypatch):
    tiny = ("--arch", "deltalm_tiny", "--encoder-embed-dim", 16, "--encoder-ffn-embed-dim", 16, "--max-positions", 40)
    assert "error: --pretrained is needed" in call_command("train", data, *tiny, *TRAINING, status=2).stderr
    tiny = (*tiny, "--random-init")
    tuning = (*tiny, "--language-token", "__{}__", "--max-update", 2, "--save-dir", "saved")
    call_command("train", data, *tuning, *TRAINING)
    monkeypatch.setattr("sys.stdin", (tmp_path / "tokens" / "test.en").open())
    out = call_command(
        *("interactive", data, "--path", "saved/checkpoint_last.pt", "--cpu", "-s", "en", "-t", "de", "--max-len-b", 5)
    ).stdout
    assert sorted(generated(out)) == list(range(5)) and "__de__" in generated(out, "S")[0][0]


def test_from_the_official_files_to_translations(data, call_command, tmp_path):
    """Convert, tokenize, fine-tune and generate, with the tokens of both languages."""
    write_official(tmp_path / "official")
    call_command("convert", "official", "--to", "deltalm", "--add-language-tokens", "en,de", "--sentinels", 100)
    files = [f"raw/{split}.{language}" for split in ("train", "valid", "test") for language in ("en", "de")]
    call_command("tokenize", "--tokenizer-dir", "deltalm", "--input", *files, "--output-dir", "pieces", "--workers", 1)
    call_command(
        *("preprocess", "-s", "en", "-t", "de", "--trainpref", "pieces/train", "--validpref", "pieces/valid"),
        *("--joined-dictionary", "--srcdict", "deltalm/dict.txt", "--workers", 1, "--destdir", "official-data"),
    )
    words = ("train", "official-data", "--arch", "deltalm", "--pretrained", "deltalm", "--language-token", "__{}__")
    words += ("--lang-pairs", "en-de,de-en", *TRAINING, "--max-update", 6, "--save-dir", "tuned")
    log = call_command(*words).stdout
    assert "loaded all 135 parameters from deltalm" in log and losses(log)[-1] < losses(log)[0]
    raw = ("--tokenizer-dir", "deltalm", "--cpu", "--beam", 2, "--max-len-b", 5, "--input", "raw/test.en")
    call_command("generate", "--path", "deltalm/model.pt", *raw, "--output", "at-once.txt")
    assert len((tmp_path / "at-once.txt").read_text().splitlines()) == 5
    (tmp_path / "deltalm" / "model.pt").unlink()  # the checkpoint needs nothing from the folder
    call_command("generate", "--path", "tuned/checkpoint_last.pt", "-t", "de", *raw, "--output", "out.txt")
    assert len((tmp_path / "out.txt").read_text().splitlines()) == 5
