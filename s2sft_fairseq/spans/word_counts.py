"""How often each word occurs: exactly, and in a memory that does not grow with the text."""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path

import numpy as np

from s2sft_fairseq.spans.words import Words


@dataclass
class WordCounts:
    """What a part of the text holds. Special symbols are no words here, and in no n-gram.

    Shape:
        V: symbols of the vocabulary.
    """

    tokens: np.ndarray
    """How often each token is a word by itself, int64 (V,)."""
    spellings: Counter[bytes] = field(default_factory=Counter)
    """How often each word of several tokens occurs."""
    totals: np.ndarray = field(default_factory=lambda: np.zeros(3, np.int64))
    """The number of all words, bigrams and trigrams (3,)."""

    def count(self, words: Words) -> None:
        """Count further words; no n-gram goes on from those counted before."""
        ordinary = ~words.special
        bigrams = ordinary[:-1] & ordinary[1:]
        trigrams = bigrams[:-1] & bigrams[1:]
        self.totals += [ordinary.sum(), bigrams.sum(), trigrams.sum()]
        single = words.lengths == 1
        self.tokens += np.bincount(words.tokens[words.first[single & ordinary]], minlength=len(self.tokens))
        self.spellings.update(words.spellings(~single))

    def add(self, other: "WordCounts") -> None:
        """Count another part of the text too."""
        self.totals += other.totals
        self.tokens += other.tokens
        self.spellings.update(other.spellings)


class SpilledWordCounts:
    """Adds up counts; when there are many words of several tokens they go to sorted files, which are merged later."""

    def __init__(self, num_symbols: int, folder: Path, max_spellings: int) -> None:
        """Prepare to hold `max_spellings` words of several tokens at a time, and to write the others to a folder."""
        self.counts = WordCounts(np.zeros(num_symbols, np.int64))
        self._folder = folder
        self._max_spellings = max_spellings
        self._files: list[Path] = []

    def add(self, counts: WordCounts) -> None:
        """Count a part of the text."""
        self.counts.add(counts)
        if len(self.counts.spellings) > self._max_spellings:
            path = self._folder / f"words-{len(self._files)}.txt"
            with path.open("w") as file:
                file.writelines(f"{spelling.hex()} {count}\n" for spelling, count in self._in_order())
            self._files.append(path)
            self.counts.spellings.clear()

    def sums(self) -> Iterator[tuple[bytes, int]]:
        """Yield each word, in the order of the spellings, and how often it occurs in all."""
        tokens = np.flatnonzero(self.counts.tokens).tolist()
        of_one = ((token.to_bytes(4, "big"), int(self.counts.tokens[token])) for token in tokens)
        in_order = heapq.merge(of_one, self._in_order(), *map(_read, self._files))
        for spelling, parts in groupby(in_order, itemgetter(0)):
            yield spelling, sum(count for _, count in parts)

    def _in_order(self) -> Iterable[tuple[bytes, int]]:
        return sorted(self.counts.spellings.items())


def _read(path: Path) -> Iterator[tuple[bytes, int]]:
    with path.open() as file:
        for line in file:
            spelling, count = line.split()
            yield bytes.fromhex(spelling), int(count)
