"""A tokenizer.json whose settings lose texts, split them at random, or make the library panic."""

import json
import logging

import pytest
from tokenizer_folders import write_gemma, write_modernbert

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.exports.hugging_face import write_tokenizer
from s2sft_fairseq.tokenization.folder import open_tokenizer
from s2sft_fairseq.tokenization.vocabulary import read_vocabulary

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")

TEXT = "The quick brown fox jumps over the lazy dog"
CLS = {"SpecialToken": {"id": "[CLS]", "type_id": 0}}
WITHOUT_TEXT = {
    "type": "TemplateProcessing",
    "single": [CLS],
    "pair": [CLS, *({"Sequence": {"id": name, "type_id": 0}} for name in "AB")],
    "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}},
}
SHORT = {"direction": "Right", "max_length": 1, "strategy": "LongestFirst", "stride": 0}
LONG = {"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None}
LONG |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}


def write(folder, of_model=None, **parts):
    path = write_modernbert(folder) / "tokenizer.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, **parts, "model": {**document["model"], **(of_model or {})}}))
    return folder


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"of_model": {"dropout": 0.9}}, "model.dropout is 0.9"),
        ({"post_processor": WITHOUT_TEXT}, "post_processor puts no text into the sequence"),
        (
            {"post_processor": {"type": "Sequence", "processors": [WITHOUT_TEXT]}},
            "post_processor puts no text into the sequence",
        ),
        ({"truncation": SHORT, "padding": LONG}, None),
    ],
)
def test_settings_that_change_texts(tmp_path, caplog, parts, named):
    expected = open_tokenizer(write_modernbert(tmp_path / "plain"))
    folder = write(tmp_path / "changed", **parts)
    tokenizer = open_tokenizer(folder)
    for _ in range(3):
        assert tokenizer.encode(TEXT) == expected.encode(TEXT)
        assert tokenizer.encode_pieces([TEXT]) == expected.encode_pieces([TEXT])
    (tmp_path / "copy").mkdir()
    with caplog.at_level(logging.WARNING):
        write_tokenizer(folder, read_vocabulary(folder), tmp_path / "copy")
    copied = (tmp_path / "copy" / "tokenizer.json").read_bytes()
    if named is None:
        assert copied == (folder / "tokenizer.json").read_bytes() and not caplog.text
        return
    assert f"{folder}/tokenizer.json: left out: {named}" in caplog.text
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "copy" / "tokenizer.json"))
    library.no_truncation()
    assert " ".join(library.encode(TEXT, add_special_tokens=False).tokens) == expected.encode(TEXT)


def test_a_decoder_that_panics(tmp_path):
    """Of a text of one letter, it strips three. The library's exception is no `Exception`."""
    folder = write_gemma(tmp_path)
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "decoder": {"type": "Strip", "content": "a", "start": 0, "stop": 3}}))
    tokenizer = open_tokenizer(folder)
    symbols = tokenizer.encode("a")
    with pytest.raises(UserError, match=r"tokenizer.json cannot be used by the package tokenizers: "):
        tokenizer.decode(symbols)


@pytest.mark.parametrize("merges", [7, [7], [None], [["a"]], ["a b c"]])
def test_damaged_merges(tmp_path, merges):
    folder = write(tmp_path, of_model={"merges": merges})
    with pytest.raises(UserError, match=r"tokenizer.json cannot be used by the package tokenizers: "):
        open_tokenizer(folder)


def test_a_merge_of_a_special_symbol(tmp_path):
    """Text could become the symbol by its pieces; all merges that need it go."""
    folder = write_gemma(tmp_path)
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    letters = "<eos>"
    tokens = [letters[:end] for end in range(1, 5)]
    vocabulary = document["model"]["vocab"]
    for token in (*tokens, *"eos>", "<eos>a"):
        vocabulary.setdefault(token, len(vocabulary) + 2)
    merges = [["<", "e"], ["<e", "o"], ["<eo", "s"], ["<eos", ">"], ["<eos>", "a"]]
    document["model"]["merges"] = [*document["model"]["merges"], *merges]
    document["added_tokens"] = [token for token in document["added_tokens"] if token["content"] != "<eos>"]
    path.write_text(json.dumps(document))
    assert open_tokenizer(folder).encode("<eos>a") == "<eos > a"


NOTHING = {"pattern": {"Regex": "."}, "content": ""}


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ({"normalizer": {"type": "Replace", **NOTHING}}, "its normalizer or pre-tokenizer removes all texts"),
        (
            {"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "."}, "behavior": "Removed", "invert": False}},
            "its normalizer or pre-tokenizer removes all texts",
        ),
        ({"decoder": {"type": "Replace", **NOTHING}}, "its decoder returns no text"),
    ],
)
def test_steps_that_lose_all_texts(tmp_path, parts, named):
    with pytest.raises(UserError, match=f"tokenizer.json cannot be used: {named}"):
        open_tokenizer(write(tmp_path, **parts))
