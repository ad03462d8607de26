"""The spans of rows of tokens, compared with a search word by word."""

import pickle
import random

import numpy as np
import pytest
from naive_spans import naive_spans, naive_words

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.spans.span_vocabulary import SpanVocabulary
from s2sft_fairseq.spans.words import WordRule

LETTERS = "abcde"
SYMBOLS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
DICTIONARY = PretrainedDictionary.of(SYMBOLS)
RULE = WordRule.of(DICTIONARY, (i for i, symbol in enumerate(SYMBOLS) if symbol.startswith("##")))


def rows(*texts: str) -> Ragged:
    return Ragged.of([np.array([SYMBOLS.index(symbol) for symbol in text.split()], np.int64) for text in texts])


def spans(vocabulary: SpanVocabulary, *texts: str) -> list[list[int]]:
    tokens = rows(*texts)
    places = vocabulary.boundaries(tokens)
    assert places.dtype == np.int64
    return [list(map(int, row)) for row in np.split(places, np.cumsum(tokens.lengths)[:-1])]


def test_by_hand():
    vocabulary = SpanVocabulary(RULE, rows("a b ##c", "b ##c d", "a b ##c d", "d d", "d d d"))
    assert spans(
        vocabulary,
        "a b ##c d a [SEP]",  # the trigram, not the bigrams in it
        "a b ##c e [SEP]",
        "a b ##c ##c d [SEP]",  # another word begins like one of the bigram's
        "b ##c d d d d d [SEP]",
        "a",
        "a [UNK] b ##c [MASK] d [SEP]",
        "",
        "##c d d",  # begins within a word
        "a b",
    ) == [
        [0, 0, 0, 0, 4, 5],
        [0, 0, 0, 3, 4],
        [0, 1, 1, 1, 4, 5],
        [0, 0, 0, 3, 3, 3, 6, 7],
        [0],
        [0, 1, 2, 2, 4, 5, 6],
        [],
        [0, 1, 1],
        [0, 1],
    ]


def test_spans_do_not_leave_their_row():
    vocabulary = SpanVocabulary(RULE, rows("a b", "a b c", "c a b"))
    assert spans(vocabulary, "a", "b", "c", "a", "b c", "c a", "b") == [[0], [0], [0], [0], [0, 1], [0, 1], [0]]


def random_text(draw: random.Random, longest: int) -> str:
    symbols = [*SYMBOLS[1:5], *LETTERS * 6, *(f"##{letter}" for letter in LETTERS * 2)]
    return " ".join(draw.choices(symbols, k=draw.randint(0, longest)))


@pytest.mark.parametrize("seed", range(6))
def test_random_rows(seed):
    draw = random.Random(seed)
    ngrams = set()
    while len(ngrams) < (0, 5, 30, 100, 300, 1000)[seed]:
        words = tuple(naive_words(random_text(draw, 6).split()))
        if len(words) in (2, 3) and not any(word[0].startswith("[") for word in words):
            ngrams.add(words)
    listed = [" ".join(symbol for word in words for symbol in word) for words in sorted(ngrams)]
    vocabulary = SpanVocabulary(RULE, rows(*listed)) if listed else SpanVocabulary(RULE)
    vocabulary = pickle.loads(pickle.dumps(vocabulary))
    for batch in range(20):
        texts = [random_text(draw, 25) for _ in range(draw.choice((1, 2, 100)))]
        assert spans(vocabulary, *texts) == [naive_spans(text.split(), ngrams) for text in texts], batch


def test_without_ngrams_each_word_is_a_span():
    assert spans(SpanVocabulary(RULE), "a b ##c ##c d [SEP]", "##a ##a") == [[0, 1, 1, 1, 4, 5], [0, 0]]


def test_each_token_a_span():
    tokens = rows("a b ##c ##c d [SEP]", "##a ##a")
    vocabulary = SpanVocabulary.of_single_tokens(DICTIONARY)
    assert vocabulary.boundaries(tokens).tolist() == tokens.place.tolist()


def test_no_rows():
    empty = np.empty(0, np.int64)
    assert SpanVocabulary(RULE, rows("a b")).boundaries(Ragged(empty, empty)).tolist() == []


@pytest.mark.parametrize("ngram", ["a", "a ##b", "", "a b c d", "a [SEP]", "[UNK] b c"])
def test_what_is_no_bigram_and_no_trigram(ngram):
    with pytest.raises(ValueError, match="need two or three words, none of them special"):
        SpanVocabulary(RULE, rows("a b", ngram))
