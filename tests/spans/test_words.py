"""Whole words of token ids, and where they begin for each kind of tokenizer."""

import pickle

import numpy as np
import pytest
from naive_spans import naive_words
from tokenizer_folders import SENTENCES, WRITERS, write_fastbpe, write_wordpiece

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.spans.words import WordNumbers, WordRule, ids_of, word_rule
from s2sft_fairseq.tokenization.folder import open_tokenizer

SYMBOLS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##a", "##b"]


@pytest.fixture(scope="module")
def rule() -> WordRule:
    return WordRule.of(PretrainedDictionary.of(SYMBOLS), [7, 8])


def ids(text: str) -> np.ndarray:
    return np.array([SYMBOLS.index(symbol) for symbol in text.split()], np.int64)


def spelled(words) -> list[tuple[str, ...]]:
    return [tuple(SYMBOLS[token] for token in ids_of(spelling)) for spelling in words.spellings()]


def test_words_of_rows(rule):
    rows = Ragged.of([ids("##a ##b a b ##b ##b [SEP]"), ids(""), ids("##b"), ids("a [UNK] ##a ##a b")])
    words = rule.split_rows(rows)
    assert [" ".join(word) for word in spelled(words)] == [
        *("##a ##b", "a", "b ##b ##b", "[SEP]"),
        *("##b",),
        *("a", "[UNK]", "##a ##a", "b"),
    ]
    assert words.lengths.tolist() == [2, 1, 3, 1, 1, 1, 1, 2, 1]
    assert np.flatnonzero(words.special).tolist() == [3, 6]


@pytest.mark.parametrize("seed", range(20))
def test_words_equal_the_naive_ones(rule, seed):
    tokens = np.random.default_rng(seed).integers(0, len(SYMBOLS), 200)
    assert spelled(rule.split(tokens, np.array([0]))) == naive_words([SYMBOLS[token] for token in tokens])


def test_no_tokens(rule):
    words = rule.split_rows(Ragged(np.empty(0, np.int64), np.zeros(3, np.int64)))
    assert words.spellings() == words.first.tolist() == words.lengths.tolist() == []


def test_a_special_symbol_does_not_continue_a_word():
    rule = WordRule.of(PretrainedDictionary.of(SYMBOLS), range(len(SYMBOLS)))
    assert np.flatnonzero(rule.continues).tolist() == [5, 6, 7, 8]
    assert np.flatnonzero(rule.special).tolist() == [0, 1, 2, 3, 4]


def test_numbers(rule):
    words = rule.split(ids("a b a ##b b ##a ##b a ##b [SEP] b"), np.array([0]))
    spellings = sorted(set(words.spellings(slice(4))))
    numbers = WordNumbers(spellings, len(SYMBOLS))
    assert [ids_of(spelling) for spelling in numbers] == [[5], [5, 8], [6], [6, 7, 8]]
    assert len(numbers) == 4
    assert numbers.of(words).tolist() == [0, 2, 1, 3, 1, -1, 2]
    again = pickle.loads(pickle.dumps(numbers))
    assert again.of(words).tolist() == numbers.of(words).tolist()


def test_spellings_sort_like_their_ids():
    rule = WordRule.of(PretrainedDictionary.of([*SYMBOLS, *(f"w{i}" for i in range(70_000))]), [])
    tokens = np.random.default_rng(1).integers(0, 70_000, 500)
    spellings = rule.split(tokens, np.array([0])).spellings()
    assert [ids_of(spelling) for spelling in sorted(spellings)] == [[token] for token in sorted(tokens.tolist())]


def decoded_words(folder, *parts: str) -> list[str]:
    """Return the words of texts and of the special symbols between them, each decoded."""
    tokenizer = open_tokenizer(folder)
    dictionary = tokenizer.dictionary
    special = dictionary.special_symbols()
    line = " ".join(part if part in special else tokenizer.encode(part) for part in parts)
    ids = np.array([dictionary.index(symbol) for symbol in line.split()])
    spellings = word_rule(tokenizer).split(ids, np.zeros(1, np.int64)).spellings()
    return [
        tokenizer.decode(" ".join(dictionary.symbols[i] for i in ids_of(spelling))).strip() for spelling in spellings
    ]


@pytest.mark.parametrize("name", ["byte_level", "gpt2", "sentencepiece", "modernbert"])
@pytest.mark.parametrize("sentence", SENTENCES[:4])
def test_words_are_separated_by_spaces(tmp_path, name, sentence):
    assert decoded_words(WRITERS[name](tmp_path), sentence) == sentence.split()


def test_bpe_with_byte_fallback(tmp_path):
    assert decoded_words(WRITERS["gemma"](tmp_path), "ab a jab ß") == ["ab", "a", "jab", "ß"]


def test_punctuation_is_a_word_of_wordpiece(tmp_path):
    folder = write_wordpiece(tmp_path)
    assert decoded_words(folder, "The quick tokenization, isn't it?", "[SEP]", "a") == [
        *("the", "quick", "tokenization", ",", "isn", "'", "t", "it", "[UNK]", "[SEP]", "a")
    ]


def test_special_symbols_between_pieces(tmp_path):
    assert decoded_words(WRITERS["byte_level"](tmp_path), "quick", "</s>", "er", "</s>", "er dog") == [
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
