"""The spans of rows of tokens, compared with a search word by word; the file of a vocabulary, and its errors."""

import math
import pickle
import random

import numpy as np
import pytest
from naive_spans import naive_spans, naive_words

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.spans.vocabulary import Entry, SpanVocabulary, load_spans, write_spans
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
        "a b ##c ##c d [SEP]",  # another word begins like that of the bigram
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
def test_ngrams_of_other_orders(ngram):
    with pytest.raises(ValueError, match="need two or three words, none of them special"):
        SpanVocabulary(RULE, rows("a b", ngram))


SYMBOLS_OF_FILE = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c", "##d"]
DICTIONARY_OF_FILE = PretrainedDictionary.of(SYMBOLS_OF_FILE)
FIRST = (
    '{"format": "s2sft span vocabulary", "version": 1, "corpus": {"lines": 3}, "listed": {"bigrams": 2, "trigrams": 1}}'
)
CONTENT = [FIRST, "a b ##c\t9\tinf", "b a\t7\t2.0000", "a a b\t12\t3.5000", "continuing\t##c ##d"]


@pytest.fixture
def write(tmp_path):
    """Write lines to the file that is loaded."""

    def write_(*lines: str):
        path = tmp_path / "spans.txt"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return write_


def spans_of(vocabulary, text: str) -> list[int]:
    ids = np.array([SYMBOLS_OF_FILE.index(symbol) for symbol in text.split()])
    return vocabulary.boundaries(Ragged.of([ids])).tolist()


def test_written_and_loaded(tmp_path):
    path = tmp_path / "new" / "spans.txt"
    bigrams = [Entry(["a", "b", "##c"], 9, math.inf), Entry(["b", "a"], 7, 1.99999)]
    write_spans(
        path,
        DICTIONARY_OF_FILE,
        WordRule.of(DICTIONARY_OF_FILE, [7, 8]),
        [bigrams, [Entry(["a", "a", "b"], 12, 3.5)]],
        {"corpus": {"lines": 3}},
    )
    assert path.read_text().splitlines() == CONTENT
    assert [file.name for file in path.parent.iterdir()] == ["spans.txt"]
    assert spans_of(load_spans(path, DICTIONARY_OF_FILE), "a b ##c b ##d a a b a [SEP]") == [
        0,
        0,
        0,
        3,
        3,
        5,
        5,
        5,
        8,
        9,
    ]


def test_an_empty_vocabulary(write):
    path = write(FIRST.replace("2", "0").replace('s": 1', 's": 0'), "continuing\t")
    path.write_text(path.read_text().replace("s0sft", "s2sft"))
    assert spans_of(load_spans(path, DICTIONARY_OF_FILE), "a ##c b") == [0, 1, 2]


def test_ids_are_those_of_the_given_dictionary(write):
    other = PretrainedDictionary.of([*SYMBOLS_OF_FILE[:5], "more", *reversed(SYMBOLS_OF_FILE[5:])])
    vocabulary = load_spans(write(*CONTENT), other)
    ids = np.array([other.indices[symbol] for symbol in ["more", "a", "b", "##c", "b", "a"]])
    assert vocabulary.boundaries(Ragged.of([ids])).tolist() == [0, 1, 1, 1, 4, 4]


def error(path) -> list[str]:
    with pytest.raises(UserError) as caught:
        load_spans(path, DICTIONARY_OF_FILE)
    return str(caught.value).replace(f"{path}", "FILE").splitlines()


def test_unreadable_files(tmp_path):
    assert error(tmp_path / "no") == ["FILE: cannot be read: No such file or directory"]
    (tmp_path / "latin").write_bytes(b"\xff\xfe")
    assert error(tmp_path / "latin") == ["FILE must be a file of s2sft span-vocab, but is not UTF-8"]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("a b\t3\t1.0", "'a b\\t3\\t1.0'"),
        ("[1]", "'[1]'"),
        ('{"format": "s2sft span vocabulary", "version": 1}', '\'{"format": "s2sft span vocabulary", "version": 1}\''),
        (FIRST.replace('"version": 1', '"version": 2'), "{'format': 's2sft span vocabulary', 'version': 2}"),
    ],
)
def test_no_first_line(write, line, found):
    needed = '{"format": "s2sft span vocabulary", "version": 1}'
    assert error(write(line, *CONTENT[1:])) == [f"FILE, line 1: needs {needed} of s2sft span-vocab, found {found}"]
    assert error(write())[0].startswith("FILE, line 1: needs")


@pytest.mark.parametrize("lines", [1, 4])
def test_cut_off(write, lines):
    assert error(write(*CONTENT[:lines])) == [
        f"FILE, line {lines}: needs 'continuing' in its last line; the file is cut off"
    ]


def test_all_mistakes_are_named(write):
    lines = [FIRST, "a b", "a b\tx\t1.0", "a b\t0\t1.0", "a b\t3\tnan", "a dog b cat\t3\t1.0", "continuing\t##c ##x"]
    what = "needs symbols, a count and a t-statistic, separated by tabs, found"
    assert error(write(*lines)) == [
        "6 mistake(s) in the span vocabulary FILE:",
        "  - FILE, line 7: needs symbols of the dictionary, which lacks '##x'",
        f"  - FILE, line 2: {what} 'a b'",
        f"  - FILE, line 3: {what} 'a b\\tx\\t1.0'",
        f"  - FILE, line 4: {what} 'a b\\t0\\t1.0'",
        f"  - FILE, line 5: {what} 'a b\\t3\\tnan'",
        "  - FILE, line 6: needs symbols of the dictionary, which lacks 'dog' and 1 more",
    ]


def test_invalid_ngrams(write):
    what = "needs two or three words, none of them a special symbol, found"
    lines = [FIRST, "a ##c\t3\t1.0", "a b a b\t3\t1.0", "a [SEP]\t3\t1.0", "continuing\t##c ##d"]
    assert error(write(*lines)) == [
        "3 mistake(s) in the span vocabulary FILE:",
        f"  - FILE, line 2: {what} 1 word(s)",
        f"  - FILE, line 3: {what} 4 word(s)",
        f"  - FILE, line 4: {what} a special symbol",
    ]


def test_order_and_number(write):
    lines = [FIRST, "a b\t3\t1.0", "a a\t3\t2.0", "a b a\t3\t1.0", "b b\t3\t1.0", "a b\t3\t1.0", "continuing\t##c"]
    place = "needs a place further up: bigrams come first, then trigrams, each with falling t"
    assert error(write(*lines)) == [
        "3 mistake(s) in the span vocabulary FILE:",
        "  - FILE, line 6: needs another n-gram than line 2, found the same",
        f"  - FILE, line 3: {place}",
        f"  - FILE, line 5: {place}",
    ]
    assert error(write(FIRST, "a b\t3\t1.0", CONTENT[-1])) == [
        "1 mistake(s) in the span vocabulary FILE:",
        "  - FILE, line 1: tells of 2 bigrams and 1 trigrams, but the file has 1 bigrams and 0 trigrams",
    ]


def test_only_the_first_mistakes_are_shown(write):
    found = error(write(FIRST, *["a"] * 99, CONTENT[-1]))
    assert found[0] == "99 mistake(s) in the span vocabulary FILE:"
    assert len(found) == 11
