"""Weights as programs of training save them: under other keys and names, with one bias of two, or not fetched."""

import json

import pytest
import torch
from hugging_face import save, their_model

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checkpoints.source_files import open_source
from s2sft_fairseq.commands.convert import main as convert
from s2sft_fairseq.data.bounded_files import open_bytes
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import open_tokenizer

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0123456789abcdef\nsize 440449768\n"
NAMES = ("bert", "bert-no-head", "roberta", "deberta", "modernbert", "modernbert-no-head", "eurobert", "gte")


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """``converted(name)``: the folder of a saved model, its weights, and those of the conversion."""
    made = {}

    def make(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            model = their_model(name)
            convert([str(save(name, model, folder / "saved")), "--to", str(folder / "made")])
            made[name] = (folder / "saved", model.state_dict(), load_checkpoint(folder / "made" / "model.pt")["model"])
        return made[name]

    return make


def copied(folder, destination, weights, name="pytorch_model.bin"):
    """Copy a folder with other weights."""
    destination.mkdir()
    for path in folder.iterdir():
        if path.suffix != ".safetensors":
            (destination / path.name).write_bytes(path.read_bytes())
    torch.save(weights, destination / name)
    return destination


def conversion_of(folder, made):
    convert([str(folder), "--to", str(made)])
    return load_checkpoint(made / "model.pt")["model"]


def assert_equal(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("prefix", ["model.", "_orig_mod.", "module.", "model._orig_mod.", "module.model.", "a.b.c."])
def test_prefixes(converted, tmp_path, name, prefix):
    folder, weights, expected = converted(name)
    wrapped = {f"{prefix}{key}": value for key, value in weights.items()}
    assert_equal(conversion_of(copied(folder, tmp_path / "wrapped", wrapped), tmp_path / "made"), expected)


@pytest.mark.parametrize("key", ["state_dict", "model", "model_state_dict", "module"])
def test_checkpoints_of_training_programs(converted, tmp_path, key, capsys):
    folder, weights, expected = converted("bert")
    wrapped = {f"model.{name}": value for name, value in weights.items()} | {"criterion.weight": torch.zeros(2)}
    state = {key: wrapped, "epoch": 3, "optimizer_states": [{"step": 1}]}
    assert_equal(conversion_of(copied(folder, tmp_path / "wrapped", state, "last.ckpt"), tmp_path / "made"), expected)
    printed = capsys.readouterr().out
    assert "the encoder is model of a larger module" in printed and "criterion.weight" in printed


def test_modules_within_the_names(converted, tmp_path):
    folder, weights, expected = converted("bert")
    around = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
    wrapped = {name.replace(".layer.1.", f".layer.1.{'.'.join(around)}."): value for name, value in weights.items()}
    assert_equal(conversion_of(copied(folder, tmp_path / "wrapped", wrapped), tmp_path / "made"), expected)
    twice = {**weights, **{f"_orig_mod.{name}": value for name, value in weights.items()}}
    with pytest.raises(UserError, match=r"pytorch_model\.bin must hold each tensor once, but .* _orig_mod"):
        open_source(copied(folder, tmp_path / "twice", twice))


def test_another_model(converted, tmp_path):
    """One sentence in place of all parameters that are missing."""
    folder, _, _ = converted("bert")
    other = {f"transformer.h.{layer}.attn.c_attn.weight": torch.zeros(2) for layer in range(12)}
    with pytest.raises(
        UserError, match=r"none of the 12 parameters is one of BERT, such as transformer\.h\.0"
    ) as raised:
        conversion_of(copied(folder, tmp_path / "other", other), tmp_path / "made")
    assert len(raised.value.problems) == 1


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_weights_that_are_no_floating_point_numbers(converted, tmp_path, dtype):
    saved, weights, _ = converted("bert")
    name = "bert.encoder.layer.1.attention.output.dense.weight"
    folder = copied(saved, tmp_path / "whole", {**weights, name: weights[name].to(dtype)})
    with pytest.raises(UserError, match=f"{name} must hold floating-point numbers, but holds {str(dtype)[6:]}"):
        convert([str(folder), "--to", str(tmp_path / "made")])


def test_several_encoders(converted, tmp_path):
    folder, weights, _ = converted("bert")
    both = {f"{part}.{name}": value for name, value in weights.items() for part in ("query", "passage")}
    with pytest.raises(UserError, match=r"must be one encoder, but .* passage\., query\."):
        conversion_of(copied(folder, tmp_path / "both", both), tmp_path / "made")


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        *((name, "cls.predictions.bias", "cls.predictions.decoder.bias") for name in ("bert", "ernie", "deberta")),
        ("nomic-bert", "cls.predictions.bias", "cls.predictions.decoder.bias"),
        *((name, "lm_head.bias", "lm_head.decoder.bias") for name in ("roberta", "xlm-roberta", "jina")),
        ("gte", "lm_head.bias", "lm_head.decoder.bias"),
    ],
)
def test_a_bias_under_one_of_its_names(converted, tmp_path, name, first, second):
    folder, weights, expected = converted(name)
    bias = weights[second]
    both = {first: bias, second: bias + 1}  # the first one counts, as in the program of s2s-ft
    if name == "gte":  # its own code has the second name alone
        both = {first: bias + 1, second: bias}
    for number, changed in enumerate([{first: bias}, {second: bias}, both]):
        others = {key: value for key, value in weights.items() if key not in (first, second)}
        wrapped = copied(folder, tmp_path / f"{number}", {**others, **changed})
        assert_equal(conversion_of(wrapped, tmp_path / f"made{number}"), expected)


@pytest.mark.parametrize("name", ["bert", "roberta", "deberta", "modernbert", "electra-generator"])
def test_an_output_matrix_in_place_of_the_token_embedding(converted, tmp_path, name):
    folder, weights, expected = converted(name)
    kept = {key: value for key, value in weights.items() if "word_embeddings" not in key and "tok_emb" not in key}
    assert len(kept) == len(weights) - 1
    assert_equal(conversion_of(copied(folder, tmp_path / "kept", kept), tmp_path / "made"), expected)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "config.json", "vocab.txt", "a.ckpt"])
def test_pointers_of_git_lfs(converted, tmp_path, name):
    folder, weights, _ = converted("bert")
    copy = copied(folder, tmp_path / "copy", weights)
    if name == "a.ckpt":
        (copy / "pytorch_model.bin").unlink()
    (copy / name).write_text(POINTER)
    with pytest.raises(UserError) as raised:
        convert([str(copy), "--to", str(tmp_path / "made")])
    pointers = [problem for problem in raised.value.problems if "pointer of git-LFS" in problem]
    assert len(pointers) == 1 and pointers[0].startswith(str(copy / name))
    if not name.endswith((".json", ".txt")):
        for load in (load_checkpoint, open_source):
            with pytest.raises(UserError, match=rf"{copy / name} is a pointer of git-LFS"):
                load(copy / name)


def test_a_pointer_in_place_of_a_tokenizer_or_texts(tmp_path):
    (tmp_path / "spm.model").write_text(POINTER)
    with pytest.raises(UserError, match=r"spm\.model is a pointer of git-LFS"):
        open_tokenizer(tmp_path)
    (tmp_path / "train.tsv").write_text(POINTER)
    with pytest.raises(UserError, match=r"train\.tsv is a pointer of git-LFS"):
        open_bytes(tmp_path / "train.tsv")


def test_added_tokens_with_a_gap(converted, tmp_path):
    folder, weights, _ = converted("bert")
    copy = copied(folder, tmp_path / "copy", weights)
    (copy / "added_tokens.json").write_text(json.dumps({"<a>": 50, "<b>": 53, "<c>": 54}))
    with pytest.raises(
        UserError, match=r"added_tokens\.json: <b> must have the next free id, 51, .* 53, .* 51 to 52"
    ) as raised:
        convert([str(copy), "--to", str(tmp_path / "made")])
    assert len(raised.value.problems) == 1
