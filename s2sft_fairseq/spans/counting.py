"""Find the n-grams in files of symbols whose words belong together, in two passes: count words, then their n-grams.

An n-gram occurs at most as often as any of its words. So the second pass numbers only words that occur often enough.
These are few, so that an n-gram fits into one integer, without hashing. Words are counted exactly, too, in memory that
does not grow with the text.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.progress import bar
from s2sft_fairseq.spans.ngrams import (
    MAX_WORDS,
    Collocations,
    bigram_keys,
    key_ranges,
    merge_runs,
    t_statistic,
    trigram_keys,
    words_of_keys,
    write_run,
)
from s2sft_fairseq.spans.words import Chunk, TokenText, WordNumbers, WordRule, Words, read_chunks
from s2sft_fairseq.tokenization.workers import Workers


@dataclass
class WordCounts:
    """The counts of words in a part of the text. Special symbols do not count as words, and are in no n-gram.

    Shape:
        V: symbols of the vocabulary.
    """

    tokens: np.ndarray
    """The count of each word of one token, int64 (V,)."""
    spellings: Counter[bytes] = field(default_factory=Counter)
    """The count of each word of several tokens."""
    totals: np.ndarray = field(default_factory=lambda: np.zeros(3, np.int64))
    """The number of all words, bigrams and trigrams, int64 (3,)."""

    def count(self, words: Words) -> None:
        """Count further words; n-grams do not cross from earlier words."""
        ordinary = ~words.special
        bigrams = ordinary[:-1] & ordinary[1:]
        trigrams = bigrams[:-1] & bigrams[1:]
        self.totals += [ordinary.sum(), bigrams.sum(), trigrams.sum()]
        single = words.lengths == 1
        self.tokens += np.bincount(words.tokens[words.first[single & ordinary]], minlength=len(self.tokens))
        self.spellings.update(words.spellings(~single))

    def add(self, other: "WordCounts") -> None:
        """Add the counts of another part of the text."""
        self.totals += other.totals
        self.tokens += other.tokens
        self.spellings.update(other.spellings)


class SpilledWordCounts:
    """Sums of counts. If there are many words of several tokens, they are moved to sorted files, and merged later."""

    def __init__(self, num_symbols: int, folder: Path, max_spellings: int) -> None:
        """Begin with no counts; if memory has more than `max_spellings` words of several tokens, write to `folder`."""
        self.counts = WordCounts(np.zeros(num_symbols, np.int64))
        self._folder = folder
        self._max_spellings = max_spellings
        self._files: list[Path] = []

    def add(self, counts: WordCounts) -> None:
        """Add the counts of a part of the text."""
        self.counts.add(counts)
        if len(self.counts.spellings) > self._max_spellings:
            path = self._folder / f"words-{len(self._files)}.txt"
            with path.open("w") as file:
                file.writelines(f"{spelling.hex()} {count}\n" for spelling, count in self._in_order())
            self._files.append(path)
            self.counts.spellings.clear()

    def sums(self) -> Iterator[tuple[bytes, int]]:
        """Yield each word with its total count, in the order of spellings."""
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


# Bytes of memory per unit of data.
_FOR_TEXT = 16  # of a process, for each byte of its text, including chunks that wait for it
_FOR_NGRAM = 64  # of a process, for each n-gram that it adds up
_FOR_WORD = 400  # of the main process, for each word of several tokens
# Larger chunks are not faster; each process should get several.
_ENOUGH_TEXT = 1 << 20
_CHUNKS_EACH = 8


@dataclass(frozen=True)
class Resources:
    """The resources of the counting, which do not change its result."""

    workers: int
    """Number of processes."""
    max_memory: int
    """Bytes for text and n-grams, for all processes together."""
    folder: Path
    """An empty folder for temporary files."""

    def chunk_size(self, paths: Iterable[Path]) -> int:
        """Return how many bytes of text a process reads at a time."""
        affordable = self.max_memory // (_FOR_TEXT * self.workers)
        fair = sum(path.stat().st_size for path in paths) // (_CHUNKS_EACH * self.workers)
        return max(1, min(affordable, max(fair, _ENOUGH_TEXT)))

    def range_size(self) -> int:
        """Return how many n-grams a process adds up at a time."""
        return max(1, self.max_memory // (_FOR_NGRAM * self.workers))


class Found(NamedTuple):
    """The result of the counting."""

    totals: np.ndarray
    """The number of all words, bigrams and trigrams, int64 (3,)."""
    ngrams: dict[int, Collocations]
    """The best n-grams of each order, 2 and 3. Their keys consist of the numbers of their words."""
    spellings: list[bytes]
    """The spelling of each word by its number."""


def find_collocations(
    paths: Sequence[Path],
    lines: int,
    text: TokenText,
    rule: WordRule,
    numbers_wanted: dict[int, int],
    min_count: int,
    resources: Resources,
) -> Found:
    """Find the bigrams and trigrams with the highest t-statistics.

    Args:
        paths: checked files of symbols, one text per line; n-grams do not cross lines.
        lines: number of lines of all files.
        text: converts symbols to ids.
        rule: splits tokens into words.
        numbers_wanted: number of n-grams of each order, 2 and 3.
        min_count: minimum count of an n-gram.
        resources: processes and memory.

    Raises:
        UserError: a symbol is unknown, more than `MAX_WORDS` words occur `min_count` times, or a process is killed.
    """
    counts = _count_words(paths, lines, text, rule, resources)
    words = _frequent(counts, min_count)
    numbers = WordNumbers(list(words), len(rule.continues))
    totals = counts.counts.totals
    probabilities = np.fromiter(words.values(), np.float64, len(words)) / max(1, totals[0])
    runs = _count_ngrams(paths, lines, _Numbering(text, rule, numbers, resources.folder), resources)
    ngrams = {
        order: _best(_Scoring(runs[order], order, probabilities, int(totals[order - 1]), min_count, wanted), resources)
        for order, wanted in numbers_wanted.items()
    }
    return Found(totals, ngrams, list(numbers))


def _count_words(
    paths: Sequence[Path], lines: int, text: TokenText, rule: WordRule, resources: Resources
) -> SpilledWordCounts:
    spilled = SpilledWordCounts(len(rule.continues), resources.folder, resources.max_memory // _FOR_WORD)
    chunks = read_chunks(paths, resources.chunk_size(paths))
    with Workers(resources.workers, (text, rule)) as pool, bar(what="words", unit=" lines", total=lines) as shown:
        for read, counts in pool.map(_words_of_chunk, chunks):
            spilled.add(counts)
            shown.update(read)
    return spilled


def _words_of_chunk(shared: tuple[TokenText, WordRule], chunk: Chunk) -> tuple[int, WordCounts]:
    text, rule = shared
    counts = WordCounts(np.zeros(len(rule.continues), np.int64))
    for ids in text.ids(chunk):
        counts.count(rule.split(ids, np.zeros(1, np.int64)))
    return chunk.lines, counts


def _frequent(counts: SpilledWordCounts, min_count: int) -> dict[bytes, int]:
    words: dict[bytes, int] = {}
    number = 0
    for spelling, count in counts.sums():
        if count >= min_count:
            number += 1
            if number <= MAX_WORDS:
                words[spelling] = count
    if number > MAX_WORDS:
        raise UserError(
            f"--min-count must be higher: {number:,} words occur {min_count} times or more, "
            f"and at most {MAX_WORDS:,} can be told apart"
        )
    return words


class _Numbering(NamedTuple):
    """The data that all processes share when they count n-grams."""

    text: TokenText
    rule: WordRule
    numbers: WordNumbers
    folder: Path


def _count_ngrams(paths: Sequence[Path], lines: int, shared: _Numbering, resources: Resources) -> dict[int, list[Path]]:
    """Write the runs of each order, 2 and 3, and return their paths."""
    runs: dict[int, list[Path]] = {2: [], 3: []}
    chunks = read_chunks(paths, resources.chunk_size(paths))
    with Workers(resources.workers, shared) as pool, bar(what="n-grams", unit=" lines", total=lines) as shown:
        for read, written in pool.map(_ngrams_of_chunk, chunks):
            for order, path in written.items():
                runs[order] += [path] if path else []
            shown.update(read)
    return runs


def _ngrams_of_chunk(shared: _Numbering, chunk: Chunk) -> tuple[int, dict[int, Path | None]]:
    text, rule, numbers, folder = shared
    found = [numbers.of(rule.split(ids, np.zeros(1, np.int64))) for ids in text.ids(chunk)]
    # Texts end with eos, which has no number, so that no n-gram crosses texts.
    in_text = np.concatenate([*found, np.empty(0, np.int64)])
    bigrams = bigram_keys(in_text)
    trigrams = trigram_keys(bigrams, in_text)
    keys = {2: bigrams, 3: trigrams}
    return chunk.lines, {order: write_run(folder / f"{order}-{chunk.number}.npy", keys[order]) for order in keys}


class _Scoring(NamedTuple):
    """The data that all processes share when they compute t-statistics."""

    runs: Sequence[Path]
    order: int
    probabilities: np.ndarray
    total: int
    min_count: int
    wanted: int


def _best(shared: _Scoring, resources: Resources) -> Collocations:
    ranges = key_ranges(shared.runs, resources.range_size())
    best = Collocations.none()
    name = {2: "bigrams", 3: "trigrams"}[shared.order]
    with Workers(resources.workers, shared) as pool, bar(what=name, unit=" ranges", total=len(ranges)) as shown:
        for part in pool.map(_best_of_range, ranges):
            best = Collocations.joined([best, part]).best(shared.wanted)
            shown.update()
    return best


def _best_of_range(shared: _Scoring, keys_range: tuple[int, int]) -> Collocations:
    keys, counts = merge_runs(shared.runs, *keys_range)
    frequent = counts >= shared.min_count
    keys, counts = keys[frequent], counts[frequent]
    by_chance = np.prod(shared.probabilities[words_of_keys(keys, shared.order)], axis=1)
    return Collocations(keys, counts, t_statistic(counts, shared.total, by_chance)).best(shared.wanted)
