"""Where words begin, for every kind of tokenizer."""

import numpy as np
import pytest
from tokenizer_folders import SENTENCES, WRITERS, write_fastbpe, write_wordpiece

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.spans.word_beginnings import word_rule
from s2sft_fairseq.spans.words import ids_of
from s2sft_fairseq.tokenization.folder import open_tokenizer


def words(folder, text: str) -> list[str]:
    """The words of a text, each decoded."""
    tokenizer = open_tokenizer(folder)
    dictionary = tokenizer.dictionary
    ids = np.array([dictionary.index(symbol) for symbol in tokenizer.encode(text).split()])
    spellings = word_rule(tokenizer).split(ids, np.zeros(1, np.int64)).spellings()
    return [
        tokenizer.decode(" ".join(dictionary.symbols[i] for i in ids_of(spelling))).strip() for spelling in spellings
    ]


@pytest.mark.parametrize("name", ["byte_level", "gpt2", "sentencepiece", "modernbert"])
@pytest.mark.parametrize("sentence", SENTENCES[:4])
def test_words_are_what_stands_between_spaces(tmp_path, name, sentence):
    assert words(WRITERS[name](tmp_path), sentence) == sentence.split()


def test_bpe_with_bytes_to_fall_back_to(tmp_path):
    assert words(WRITERS["gemma"](tmp_path), "ab a jab ß") == ["ab", "a", "jab", "ß"]


def test_punctuation_is_a_word_of_wordpiece(tmp_path):
    folder = write_wordpiece(tmp_path)
    assert words(folder, "The quick tokenization, isn't it?[SEP]a") == [
        *("the", "quick", "tokenization", ",", "isn", "'", "t", "it", "[UNK]", "[SEP]", "a")
    ]


def test_special_symbols_between_pieces(tmp_path):
    assert words(WRITERS["byte_level"](tmp_path), "quick</s>er</s>er dog") == [
        "quick",
        "</s>",
        "er",
        "</s>",
        "er",
        "dog",
    ]


def test_pieces_that_do_not_show_where_words_begin(tmp_path):
    tokenizer = open_tokenizer(write_fastbpe(tmp_path))
    with pytest.raises(UserError) as caught:
        word_rule(tokenizer)
    assert str(caught.value) == (
        "--tokenizer-dir needs pieces that show where words begin, by '##' (WordPiece), 'Ġ' (byte-level BPE) or '▁' "
        f"(SentencePiece), but of {len(tokenizer.dictionary)} only 0 begin with 'Ġ'"
    )
