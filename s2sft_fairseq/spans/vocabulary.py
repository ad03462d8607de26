"""The vocabulary of spans and its file, and the spans of target texts.

Spans are trigrams, bigrams and single words, found greedily (ERNIE-GEN, section 3.3). The file is readable text:

===========  ===========================================================================================================
first line   JSON: ``format`` and ``version``, the settings of the counting, and the number of n-grams in the file
then         the bigrams, best first, and then the trigrams, best first: the symbols as in tokenized text, the count and
             the t-statistic, separated by tabs
last line    ``continuing`` and, after a tab, the symbols of the dictionary that do not begin a word
===========  ===========================================================================================================

The file suffices to split rows of token ids into spans, without the tokenizer.
"""

import json
import re
from collections.abc import Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from s2sft_fairseq.data.bounded_files import READING_ERRORS, parse_json, reading_problem, whole_number
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.data.text_files import read_lines, write_lines
from s2sft_fairseq.errors import UserError, shown
from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.spans.ngrams import bigram_keys, trigram_keys
from s2sft_fairseq.spans.words import WordNumbers, WordRule

_NO_NGRAMS = Ragged(np.empty(0, np.int64), np.empty(0, np.int64))


class SpanVocabulary:
    """The bigrams and trigrams that are predicted as one span. Every other word is a span by itself.

    Shape:
        N: tokens, W: words, of all rows together.
    """

    def __init__(self, rule: WordRule, ngrams: Ragged = _NO_NGRAMS) -> None:
        """Store the n-grams, given as rows of token ids.

        Raises:
            ValueError: an n-gram does not have two or three words, or holds a special symbol.
        """
        self.rule = rule
        words = rule.split_rows(ngrams)
        row = ngrams.row[words.first]
        order = np.bincount(row, minlength=len(ngrams.lengths))
        if words.special.any() or not np.isin(order, (2, 3)).all():
            raise ValueError("the n-grams of a span vocabulary need two or three words, none of them special")
        self._numbers = WordNumbers(sorted(set(words.spellings())), len(rule.continues))
        bigrams, trigrams = _keys(self._numbers.of(words), row)
        begins = np.diff(row, prepend=-1) > 0  # the first word of each n-gram
        self._bigrams = np.sort(bigrams[begins[:-1] & (order[row[:-1]] == 2)])
        self._trigrams = np.sort(trigrams[begins[:-2] & (order[row[:-2]] == 3)])

    @classmethod
    def of_single_tokens(cls, dictionary: PretrainedDictionary) -> "SpanVocabulary":
        """Return the vocabulary with which each token is a span, so that the span flow is the word flow."""
        return cls(WordRule.of(dictionary, ()))

    def boundaries(self, tokens: Ragged) -> np.ndarray:
        """Find the spans of each row: from the left, always the longest one in the vocabulary, in whole words.

        Special symbols, words that the vocabulary lacks and the rest of a cut word are spans of their own.

        Args:
            tokens: ids of all rows.

        Returns:
            For each token, the index in its row of the first token of its span, int64 (N,).
        """
        words = self.rule.split_rows(tokens)
        spans = self._spans(self._numbers.of(words), tokens.row[words.first])
        first = words.first[spans]
        return np.repeat(tokens.place[first], np.diff(first, append=len(tokens.values)))

    def _spans(self, numbers: np.ndarray, row: np.ndarray) -> list[int]:
        """Return the indices of the words that begin a span."""
        bigrams, trigrams = _keys(numbers, row)
        longest = np.ones(len(numbers), np.int64)
        longest[:-1][_is_in(bigrams, self._bigrams)] = 2
        longest[:-2][_is_in(trigrams, self._trigrams)] = 3
        # No span crosses rows, so that one walk through all words visits the first word of each row.
        words = longest.tolist()
        spans = []
        at = 0
        while at < len(words):
            spans.append(at)
            at += words[at]
        return spans


def _keys(numbers: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys of the bigrams (W - 1,) and trigrams (W - 2,) that begin at each word; negative across rows."""
    bigrams = np.where(np.diff(row) == 0, bigram_keys(numbers), -1)
    return bigrams, trigram_keys(bigrams, numbers)


def _is_in(keys: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Return whether a sorted table holds each key, boolean."""
    if not len(table):
        return np.zeros(len(keys), bool)
    return table[np.minimum(np.searchsorted(table, keys), len(table) - 1)] == keys


FORMAT = {"format": "s2sft span vocabulary", "version": 1}
_CONTINUING = "continuing"
_ORDERS = ("bigrams", "trigrams")
_SHOWN_PROBLEMS = 10
_T = re.compile(r"[0-9]+\.[0-9]+|inf")
Symbol = TypeVar("Symbol", str, int)


class Entry(NamedTuple, Generic[Symbol]):
    """An n-gram, of symbols or of their ids."""

    symbols: Sequence[Symbol]
    count: int  # type: ignore[assignment]  # tuples have a method of that name
    t: float


def write_spans(
    path: Path,
    dictionary: PretrainedDictionary,
    rule: WordRule,
    ngrams: Sequence[Sequence[Entry[str]]],
    facts: dict[str, Any],
) -> None:
    """Write a span vocabulary; the file appears when it is complete.

    Args:
        path: the file.
        dictionary: the vocabulary.
        rule: splits tokens into words.
        ngrams: the bigrams and the trigrams, best first.
        facts: the settings and totals of the counting, for the first line.
    """
    listed = {name: len(entries) for name, entries in zip(_ORDERS, ngrams, strict=True)}
    continuing = (dictionary.symbols[number] for number in np.flatnonzero(rule.continues))
    lines = (f"{' '.join(symbols)}\t{count}\t{t:.4f}" for entries in ngrams for symbols, count, t in entries)
    first = json.dumps({**FORMAT, **facts, "listed": listed}, ensure_ascii=False)
    last = f"{_CONTINUING}\t{' '.join(continuing)}"
    write_lines(path, chain([first], lines, [last]))


def load_spans(path: Path, dictionary: PretrainedDictionary) -> SpanVocabulary:
    """Load a span vocabulary for the ids of a dictionary.

    Raises:
        UserError: the file cannot be read, is not a span vocabulary or is damaged, or has symbols that the dictionary
            lacks. The message lists the first ten mistakes.
    """
    try:
        lines = list(read_lines(path))
    except READING_ERRORS as error:
        raise UserError(reading_problem(path, error)) from None
    except UnicodeDecodeError:
        raise UserError(f"{path} must be a file of s2sft span-vocab, but is not UTF-8") from None
    return _Reader(path, dictionary).read(lines)


class _Reader:
    """A reader of lines that collects their problems."""

    def __init__(self, path: Path, dictionary: PretrainedDictionary) -> None:
        self._path = path
        self._dictionary = dictionary
        self._problems: list[str] = []

    def read(self, lines: Sequence[str]) -> SpanVocabulary:
        listed = self._listed(lines[0] if lines else "")
        rule = self._rule(len(lines), lines[-1])
        entries = [self._entry(number, line) for number, line in enumerate(lines[1:-1], 2)]
        self._raise_problems()
        ids = np.fromiter(chain.from_iterable(entry.symbols for entry in entries), np.int64)
        ngrams = Ragged(ids, np.fromiter((len(entry.symbols) for entry in entries), np.int64, len(entries)))
        orders = self._orders(rule, ngrams)
        self._raise_problems()
        self._check_order(orders, entries)
        found = {name: orders.count(order) for order, name in enumerate(_ORDERS, 2)}
        if found != listed and not self._problems:
            self._note(1, f"tells of {_numbers(listed)}, but the file has {_numbers(found)}")
        self._raise_problems()
        return SpanVocabulary(rule, ngrams)

    def _note(self, line: int, problem: str) -> None:
        self._problems.append(f"{self._path}, line {line}: {problem}")

    def _raise_problems(self) -> None:
        if self._problems:
            heading = f"{len(self._problems)} mistake(s) in the span vocabulary {self._path}:"
            raise UserError.of(self._problems[:_SHOWN_PROBLEMS], heading)

    def _listed(self, line: str) -> dict[str, int]:
        """Return the number of n-grams of each order, as the first line states it."""
        try:
            facts = parse_json(line)
            found: object = {key: facts[key] for key in FORMAT}
            listed = {name: facts["listed"][name] for name in _ORDERS}
        except (ValueError, TypeError, LookupError):
            found, listed = line[:60], {}
        if found != FORMAT:
            raise UserError(f"{self._path}, line 1: needs {json.dumps(FORMAT)} of s2sft span-vocab, found {found!r}")
        if wrong := [f"{name} is {shown(number)}" for name, number in listed.items() if type(number) is not int]:
            raise UserError(f"{self._path}, line 1: needs whole numbers of n-grams in listed, but {', '.join(wrong)}")
        return listed

    def _rule(self, number: int, line: str) -> WordRule:
        name, _, symbols = line.partition("\t")
        if name != _CONTINUING:
            raise UserError(f"{self._path}, line {number}: needs '{_CONTINUING}' in its last line; the file is cut off")
        return WordRule.of(self._dictionary, self._ids(number, symbols))

    def _ids(self, number: int, symbols: str) -> list[int]:
        names = symbols.split(" ") if symbols else []
        if unknown := [name for name in names if name not in self._dictionary]:
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            self._note(number, f"needs symbols of the dictionary, which lacks {unknown[0]!r}{more}")
            return []
        return [self._dictionary.indices[name] for name in names]

    def _entry(self, number: int, line: str) -> Entry[int]:
        """Return the n-gram of a line, with the ids of its symbols."""
        symbols, count, t = line.split("\t") if line.count("\t") == 2 else ("", "", "")
        number_of = whole_number(count)
        if not (symbols and number_of and _T.fullmatch(t)):
            self._note(number, f"needs symbols, a count and a t-statistic, separated by tabs, found {line[:60]!r}")
            return Entry((), 0, 0.0)
        return Entry(self._ids(number, symbols), number_of, float(t))

    def _orders(self, rule: WordRule, ngrams: Ragged) -> list[int]:
        """Return the number of words of each n-gram."""
        words = rule.split_rows(ngrams)
        row = ngrams.row[words.first]
        orders = np.bincount(row, minlength=len(ngrams.lengths))
        special = np.bincount(row, words.special, minlength=len(ngrams.lengths)) > 0
        for wrong in np.flatnonzero(special | (orders < 2) | (orders > 3)).tolist():
            found = "a special symbol" if special[wrong] else f"{orders[wrong]} word(s)"
            self._note(wrong + 2, f"needs two or three words, none of them a special symbol, found {found}")
        return orders.tolist()

    def _check_order(self, orders: Sequence[int], entries: Sequence[Entry[int]]) -> None:
        first_line: dict[tuple[int, ...], int] = {}
        for number, entry in enumerate(entries, 2):
            if (before := first_line.setdefault(tuple(entry.symbols), number)) != number:
                self._note(number, f"needs another n-gram than line {before}, found the same")
        ranks = [(order, -entry.t) for order, entry in zip(orders, entries, strict=True)]
        for number, (rank, following) in enumerate(pairwise(ranks), 3):
            if following < rank:
                self._note(number, "needs a place further up: bigrams come first, then trigrams, each with falling t")


def _numbers(listed: dict[str, int]) -> str:
    return " and ".join(f"{number:,} {name}" for name, number in listed.items())
