"""The file of a span vocabulary, and what is wrong with others."""

import math

import numpy as np
import pytest

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.spans.span_file import Entry, load_spans, write_spans
from s2sft_fairseq.spans.words import WordRule

SYMBOLS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c", "##d"]
DICTIONARY = PretrainedDictionary.of(SYMBOLS)
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


def spans(vocabulary, text: str) -> list[int]:
    ids = np.array([SYMBOLS.index(symbol) for symbol in text.split()])
    return vocabulary.boundaries(Ragged.of([ids])).tolist()


def test_written_and_loaded(tmp_path):
    path = tmp_path / "new" / "spans.txt"
    bigrams = [Entry(["a", "b", "##c"], 9, math.inf), Entry(["b", "a"], 7, 1.99999)]
    write_spans(
        path,
        DICTIONARY,
        WordRule.of(DICTIONARY, [7, 8]),
        [bigrams, [Entry(["a", "a", "b"], 12, 3.5)]],
        {"corpus": {"lines": 3}},
    )
    assert path.read_text().splitlines() == CONTENT
    assert [file.name for file in path.parent.iterdir()] == ["spans.txt"]
    assert spans(load_spans(path, DICTIONARY), "a b ##c b ##d a a b a [SEP]") == [0, 0, 0, 3, 3, 5, 5, 5, 8, 9]


def test_of_no_ngrams(write):
    path = write(FIRST.replace("2", "0").replace('s": 1', 's": 0'), "continuing\t")
    path.write_text(path.read_text().replace("s0sft", "s2sft"))
    assert spans(load_spans(path, DICTIONARY), "a ##c b") == [0, 1, 2]


def test_ids_are_those_of_the_dictionary_that_is_given(write):
    other = PretrainedDictionary.of([*SYMBOLS[:5], "more", *reversed(SYMBOLS[5:])])
    vocabulary = load_spans(write(*CONTENT), other)
    ids = np.array([other.indices[symbol] for symbol in ["more", "a", "b", "##c", "b", "a"]])
    assert vocabulary.boundaries(Ragged.of([ids])).tolist() == [0, 1, 1, 1, 4, 4]


def error(path) -> list[str]:
    with pytest.raises(UserError) as caught:
        load_spans(path, DICTIONARY)
    return str(caught.value).replace(f"{path}", "FILE").splitlines()


def test_what_cannot_be_read(tmp_path):
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


def test_ngrams_that_are_none(write):
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
