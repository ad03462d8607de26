"""``s2sft export`` of encoder-decoders: transformers finds our hypotheses, and converting back restores the model."""

import json
import shutil

import pytest
import torch
from official_deltalm import write_official
from tiny_deltalm import TEXTS, write_deltalm

from s2sft_fairseq import Seq2Seq
from s2sft_fairseq.checkpoints.deltalm import COPIES
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checksums import write_checksums
from s2sft_fairseq.commands.convert import main as convert
from s2sft_fairseq.commands.export import main as export
from s2sft_fairseq.errors import UserError

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

MODELS = {
    "plain": {},
    "bert": {"tokenizer": "wordpiece", "layer_norm_eps": 1e-12},
    "marian": {"layernorm_embedding": "no"},
    "language": {"languages": ("de",)},
    "languages": {"languages": ("de", "fr")},
}


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    """A function from a name in `MODELS` to its folder, made once."""
    folder = tmp_path_factory.mktemp("models")

    def made(name):
        path = folder / name
        return path if path.exists() else write_deltalm(path, **MODELS[name])

    return made


def with_search(model, folder, **search):
    """Copy a model folder and change its search options."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text())
    config["search"] = {"max_len_b": 28, **search}
    (folder / "config.json").write_text(json.dumps(config))
    write_checksums(folder)
    return folder


def exported(model, folder, *words):
    export([str(model), "--format", "hugging_face", "--to", str(folder), *words])
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_hypotheses_of_transformers(model_of, tmp_path, name, capsys):
    model = model_of(name)
    folder = exported(model, tmp_path / "out")
    assert "11 of 11 hypotheses are equal, logits within " in capsys.readouterr().out
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder)
    symbol = "__de__ " if name == "languages" else ""
    batch = tokenizer([symbol + text for text in TEXTS], return_tensors="pt", padding=True, truncation=True)
    ours = Seq2Seq.from_pretrained(model)
    best = ours.hypotheses(TEXTS)
    assert len({each[0].text for each in best}) > 2, best
    rows = theirs.generate(**batch).tolist()
    for (found,), row in zip(best, rows, strict=True):
        end = row.index(theirs.config.eos_token_id, 1)  # transformers pads with eos if the padding's id is 0
        assert row[1 : end + 1] == ours.ids(found.tokens)


@pytest.mark.parametrize(
    "search",
    [
        {"beam": 3, "lenpen": 0.6},
        {"beam": 2, "lenpen": 0.8, "early_stop": "never"},
        {"beam": 1},
        {"beam": 4, "unnormalized": True},
        {"beam": 4, "min_len": 4},
        {"beam": 4, "no_repeat_ngram_size": 2},
        {"beam": 4, "no_repeat_ngram_size": 3, "min_len": 0},
    ],
)
def test_searches(model_of, tmp_path, search, capsys):
    model = with_search(model_of("plain"), tmp_path / "model", **search)
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in TEXTS))
    exported(model, tmp_path / "out", "--verify", str(tmp_path / "texts"))
    assert f"{len(TEXTS)} of {len(TEXTS)} hypotheses are equal" in capsys.readouterr().out


def test_generation_config(model_of, tmp_path, capsys):
    search = {"beam": 3, "max_len_a": 0.5, "max_len_b": 4, "early_stop": "fairseq", "lenpen": 2, "temperature": 1.5}
    model = with_search(model_of("plain"), tmp_path / "model", **search)
    told = json.loads((exported(model, tmp_path / "out") / "generation_config.json").read_text())
    # 0.5 * 24 + 4 tokens, and the start symbol and eos.
    assert (told["max_length"], told["min_length"], told["num_beams"]) == (18, 2, 3)
    assert (told["early_stopping"], told["length_penalty"], told["suppress_tokens"]) == (True, 2.0, [1])
    printed = capsys.readouterr().out
    assert "--max-len-a 0.5: " in printed and "--temperature 1.5 " in printed
    sampled = with_search(model_of("plain"), tmp_path / "sampled", sampling=True, sampling_topp=0.9, max_len_b=200)
    told = json.loads((exported(sampled, tmp_path / "out2") / "generation_config.json").read_text())
    assert (told["do_sample"], told["num_beams"], told["top_k"], told["top_p"]) == (True, 1, 0, 0.9)
    assert told["max_length"] == 31  # the model has 30 positions


def test_the_readme_tells_how_to_use_it_and_what_was_compared(model_of, tmp_path):
    folder = exported(model_of("languages"), tmp_path / "out")
    card = (folder / "README.md").read_text()
    assert "AutoModelForSeq2SeqLM" in card and '["__de__ ..."]' in card
    assert "| equal hypotheses | 11 of 11 |" in card and "| largest difference of logits |" in card
    assert sorted(path.name for path in folder.iterdir()) == [
        *("README.md", "SHA256SUMS", "added_tokens.json", "config.json", "dict.txt", "generation_config.json"),
        *("model.safetensors", "sentencepiece.bpe.model", "tokenizer.json", "tokenizer_config.json"),
    ]


@pytest.mark.parametrize("name", MODELS)
def test_back_again(model_of, tmp_path, name):
    """The weights are equal bit by bit, and so are the hypotheses: the layout is restored too."""
    model = model_of(name)
    convert([str(exported(model, tmp_path / "out")), "--to", str(tmp_path / "again")])
    before, after = (load_checkpoint(path)["model"] for path in (model, tmp_path / "again" / "model.pt"))
    assert {*before} - {*after} <= {*COPIES, "encoder.version", "decoder.version"}
    for key, value in after.items():
        rows = 2 if "embed_positions" in key and name != "bert" else 0  # rows without a position
        assert torch.equal(value[rows:], before[key][rows:]) or "bert" in name, key
    again = Seq2Seq.from_pretrained(tmp_path / "again" / "model.pt", tmp_path / "again")
    settings = {"max_len": 28}
    assert again.generate(TEXTS, **settings) == Seq2Seq.from_pretrained(model).generate(TEXTS, **settings)


def test_a_converted_official_checkpoint(tmp_path, capsys):
    """It is not fine-tuned, but computes the same function."""
    source = write_official(tmp_path / "official", embedding_norm=False)
    convert([str(source), "--to", str(tmp_path / "deltalm"), "--add-language-tokens", "en"])
    capsys.readouterr()
    exported(tmp_path / "deltalm", tmp_path / "out")
    printed = capsys.readouterr().out
    assert "wrote" in printed and "MarianMTModel" in printed
    within = float(printed.partition("logits within ")[2].split()[0])
    assert within < 1e-4 * 100  # logits of these random weights reach hundreds


def test_a_checkpoint_needs_its_tokenizer(model_of, tmp_path):
    checkpoint = model_of("plain").with_name("plain.pt")
    with pytest.raises(UserError, match=r"^--tokenizer-dir is needed for .*plain\.pt"):
        exported(checkpoint, tmp_path / "out")
    tokenizer = checkpoint.with_name("plain-tokenizer")
    folder = exported(checkpoint, tmp_path / "out", "--tokenizer-dir", str(tokenizer))
    assert (folder / "model.safetensors").is_file()
    other = model_of("language")
    with pytest.raises(UserError, match=r"has 83 symbols, but .*plain\.pt was trained with 82$"):
        exported(checkpoint, tmp_path / "other", "--tokenizer-dir", str(other))
    assert not (tmp_path / "other").exists()


def test_options_without_effect(model_of, tmp_path):
    model, out = str(model_of("plain")), str(tmp_path / "out")
    with pytest.raises(UserError) as error:
        export([model, "--to", out, "--quantize", "int8", "--verify", "texts"])
    assert error.value.problems == [
        "--quantize is for --format ctranslate2 or onnx, but --format is model",
        "--verify is for generators in another program's format, but --format is model",
    ]
    with pytest.raises(UserError, match=r"^--self-contained is for encoder-only models, but .*plain is a deltalm"):
        export([model, "--to", out, "--format", "hugging_face", "--self-contained"])
    with pytest.raises(UserError, match=r"^--pretrained is for checkpoints with adapters"):
        export([model, "--to", out, "--format", "hugging_face", "--pretrained", model])
    with pytest.raises(UserError, match=r"^--verify .*missing must be a text file"):
        exported(model, tmp_path / "out", "--verify", str(tmp_path / "missing"))


def test_another_bart_is_refused(tmp_path):
    config = transformers.BartConfig(
        **{"vocab_size": 82, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 20},
        **{"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2},
    )
    transformers.BartForConditionalGeneration(config).save_pretrained(tmp_path / "bart")
    write_official(tmp_path / "official")
    for name in ("spm.model", "dict.txt"):
        shutil.copyfile(tmp_path / "official" / name, tmp_path / "bart" / name)
    with pytest.raises(UserError, match=r"this is a BART whose decoder is not that of a DeltaLM"):
        convert([str(tmp_path / "bart"), "--to", str(tmp_path / "out")])
