"""Tokenizers that a tokenizer.json describes in full."""

import json
import shutil

import pytest
from tokenizer_folders import SENTENCES, random_texts

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import open_tokenizer
from s2sft_fairseq.tokenization.symbols import write_symbol


@pytest.mark.parametrize("name", ["modernbert", "gemma"])
def test_pieces_are_those_of_transformers(tokenizer_folder, name):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    path = tokenizer_folder(name) / "tokenizer.json"
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
    ours = open_tokenizer(path.parent)
    for text in [*SENTENCES[:4], *random_texts(300)]:
        assert ours.encode(text).split(" ") == ([write_symbol(token) for token in theirs.tokenize(text)] or [""])


def test_white_space_within_tokens(tokenizer_folder):
    modernbert, gemma = (open_tokenizer(tokenizer_folder(name)) for name in ("modernbert", "gemma"))
    assert modernbert.encode("a    b").split() == ["a", "<U+0020>" * 4, "b"]
    assert modernbert.decode("a <U+0020><U+0020> b") == "a  b"
    assert gemma.encode("ab\n\n\tab").split() == ["ab", "<U+000A><U+000A>", "<U+0009>", "ab"]
    assert gemma.decode("ab <U+000A> ▁ab") == "ab\n ab"


def test_unigram(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "▁the", "▁do", "g", "▁"]
    model = tokenizers.models.Unigram([(token, -float(number)) for number, token in enumerate(tokens)], unk_id=3)
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer, made.decoder = tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders.Metaspace()
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = open_tokenizer(tmp_path)
    assert tokenizer.encode("the dog</s>zz") == "▁the ▁do g </s> ▁ <unk>"
    assert tokenizer.decode("▁the ▁do g") == "the dog"


def test_a_tokenizer_without_a_decoder(tmp_path, tokenizer_folder):
    document = json.loads((tokenizer_folder("modernbert") / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**document, "decoder": None}))
    assert open_tokenizer(tmp_path).decode("a b") == "a b"


def test_a_file_that_the_library_cannot_use(tokenizer_folder, tmp_path):
    shutil.copy(tokenizer_folder("modernbert") / "tokenizer.json", tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**document, "pre_tokenizer": {"type": "Unheard"}}))
    with pytest.raises(UserError, match=r"tokenizer\.json cannot be used by the package tokenizers: "):
        open_tokenizer(tmp_path)
