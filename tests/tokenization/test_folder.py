"""What all tokenizers have in common, whatever the scheme of their folder."""

import sys
import unicodedata

import pytest
from fairseq.tokenizer import tokenize_line
from tokenizer_folders import SENTENCES, WRITERS, random_texts

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import open_tokenizer

TEXTS = [*SENTENCES[:4], "", " ", "a  b", *random_texts(300)]


@pytest.fixture(params=WRITERS)
def tokenizer(request, tokenizer_folder):
    return open_tokenizer(tokenizer_folder(request.param))


def test_every_symbol_is_in_the_dictionary(tokenizer):
    for text in TEXTS:
        symbols = tokenizer.encode(text).split(" ") if tokenizer.encode(text) else []
        assert all(symbol in tokenizer.dictionary for symbol in symbols), (text, symbols)
        # fairseq reads as many symbols as were written.
        assert tokenize_line(" ".join(symbols)) == symbols


def test_a_batch_is_its_lines(tokenizer):
    assert tokenizer.encode_batch(TEXTS) == [tokenizer.encode(text) for text in TEXTS]
    assert tokenizer.encode_batch([]) == []


def test_ordinary_text_comes_back(tokenizer):
    text = "the quick brown fox, and the dog"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("") == tokenizer.decode("") == ""


def test_separator_and_mask_stay_whole(tokenizer):
    sep, mask = tokenizer.dictionary.eos_word, tokenizer.dictionary.symbols[tokenizer.dictionary.mask()]
    symbols = tokenizer.encode(f"the {sep} dog{mask}").split()
    assert symbols.count(sep) == symbols.count(mask) == 1
    assert symbols[-1] == mask
    decoded = tokenizer.decode(" ".join(symbols))
    assert decoded.replace(" ", "") == f"the{sep}dog{mask}"


@pytest.mark.parametrize("name", ["byte_level", "gpt2", "gemma"])
def test_any_text_comes_back_from_bytes(tokenizer_folder, name):
    tokenizer = open_tokenizer(tokenizer_folder(name))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_any_text_comes_back_from_a_tokenizer_json_as_far_as_it_normalizes(tokenizer_folder):
    tokenizer = open_tokenizer(tokenizer_folder("modernbert"))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("name", ["wordpiece", "byte_level", "modernbert"])
def test_the_library_that_is_not_installed_is_named(tokenizer_folder, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match="needs the package tokenizers, which is not installed: pip install tokenizers"):
        open_tokenizer(tokenizer_folder(name))


def test_a_dictionary_alone_does_not_tokenize(tmp_path):
    (tmp_path / "dict.txt").write_text("a 1\n")
    with pytest.raises(UserError, match=r"holds dict\.txt, but to tokenize it needs one of these beside it") as caught:
        open_tokenizer(tmp_path)
    assert "sentencepiece.bpe.model" in str(caught.value)
