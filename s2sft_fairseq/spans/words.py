"""Whole words of tokenized text: read files of symbols, find where words begin, and number the words of n-grams.

As in fairseq's masking of whole words, a word begins at a piece after white space. WordPiece marks the other pieces
(``##ing``); byte-level BPE (``Ġthe``) and SentencePiece (``▁the``) mark the pieces that begin a word. So punctuation is
a word of its own only with WordPiece. In scripts without spaces only WordPiece, which splits at every Chinese
character, gives useful words.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np

from s2sft_fairseq.data.bounded_files import open_bytes
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.tokenization.folder import Tokenizer
from s2sft_fairseq.tokenization.wordpiece import CONTINUATION, WordPiece


@dataclass(frozen=True)
class Words:
    """The words of a sequence of tokens.

    Shape:
        N: tokens, W: words.
    """

    tokens: np.ndarray
    """The ids (N,)."""
    first: np.ndarray
    """The index of the first token of each word (W,)."""
    special: np.ndarray
    """Whether each word is a special symbol, boolean (W,)."""

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each word (W,)."""
        return np.diff(self.first, append=len(self.tokens))

    def spellings(self, chosen: np.ndarray | slice = slice(None)) -> list[bytes]:
        """Return the spelling of each chosen word: its ids as big-endian integers of four bytes.

        Spellings sort in the order of the ids.
        """
        data = self.tokens.astype(">i4").tobytes()
        begin = 4 * self.first[chosen]
        end = begin + 4 * self.lengths[chosen]
        return [data[start:stop] for start, stop in zip(begin.tolist(), end.tolist(), strict=True)]


def ids_of(spelling: bytes) -> list[int]:
    """Return the ids of a word from its spelling."""
    return np.frombuffer(spelling, ">i4").tolist()


@dataclass(frozen=True)
class WordRule:
    """The rule that decides at which tokens words begin, for a vocabulary of V symbols.

    A special symbol is a word by itself, and ends the word before it.
    """

    continues: np.ndarray
    """Which symbols continue the word before them, boolean (V,)."""
    special: np.ndarray
    """Which symbols are special, boolean (V,); these do not continue a word."""

    @classmethod
    def of(cls, dictionary: PretrainedDictionary, continues: Iterable[int]) -> "WordRule":
        """Return the rule for the ids of the symbols that continue the word before them."""
        special = np.zeros(len(dictionary), bool)
        special[[*dictionary.never_generated(), dictionary.eos()]] = True
        marked = np.zeros(len(dictionary), bool)
        marked[np.fromiter(continues, np.int64)] = True
        return cls(marked & ~special, special)

    def split(self, tokens: np.ndarray, row_starts: np.ndarray) -> Words:
        """Split rows of tokens into words.

        Args:
            tokens: the ids of all rows, one after the other (N,).
            row_starts: indices of the first token of each row, which always begins a word (B,).
        """
        special = self.special[tokens]
        begins = ~self.continues[tokens]
        begins[1:] |= special[:-1]
        begins[row_starts] = True
        first = np.flatnonzero(begins)
        return Words(tokens, first, special[first])

    def split_rows(self, rows: Ragged) -> Words:
        """Split rows of tokens into words."""
        return self.split(rows.values, np.flatnonzero(rows.place == 0))


class WordNumbers:
    """The numbers of some words, from 0, in the order of their ids."""

    def __init__(self, spellings: Sequence[bytes], num_symbols: int) -> None:
        """Number the words of unique, sorted spellings, for a vocabulary of `num_symbols`."""
        self._of_spelling = {spelling: number for number, spelling in enumerate(spellings)}
        # Most words are single tokens, which an array looks up faster.
        self._of_token = np.full(num_symbols, -1, np.int64)
        for spelling, number in self._of_spelling.items():
            if len(spelling) == 4:
                self._of_token[int.from_bytes(spelling, "big")] = number

    def __len__(self) -> int:
        return len(self._of_spelling)

    def __iter__(self) -> Iterator[bytes]:
        """Yield the spellings in the order of their numbers."""
        return iter(self._of_spelling)

    def of(self, words: Words) -> np.ndarray:
        """Return the number of each word, -1 for a word without one (W,)."""
        numbers = self._of_token[words.tokens[words.first]]
        several = np.flatnonzero(words.lengths > 1)
        number_of = self._of_spelling.get
        numbers[several] = [number_of(spelling, -1) for spelling in words.spellings(several)]
        return numbers


_BEGINNINGS = ("Ġ", "▁")
_LEAST_MARKED = 0.01  # share of all pieces; other vocabularies may have such a mark as a letter


def word_rule(tokenizer: Tokenizer) -> WordRule:
    """Return the rule of words for a tokenizer.

    Raises:
        UserError: its pieces do not show where words begin, such as those of fastBPE, which mark where words end.
    """
    symbols = tokenizer.dictionary.symbols
    if isinstance(tokenizer, WordPiece):
        continues = [symbol.startswith(CONTINUATION) and len(symbol) > len(CONTINUATION) for symbol in symbols]
    else:
        # The symbols of fairseq's RoBERTa are numbers; its tokenizer has the pieces.
        spelled = getattr(tokenizer, "pieces", {})
        pieces = [spelled.get(symbol, symbol) for symbol in symbols]
        mark = _mark(pieces)
        continues = [not piece.startswith(mark) for piece in pieces]
    return WordRule.of(tokenizer.dictionary, np.flatnonzero(continues))


def _mark(pieces: list[str]) -> str:
    counts = {mark: sum(piece.startswith(mark) for piece in pieces) for mark in _BEGINNINGS}
    mark = max(_BEGINNINGS, key=lambda mark: counts[mark])
    if counts[mark] < _LEAST_MARKED * len(pieces):
        raise UserError(
            "--tokenizer-dir needs pieces that show where words begin, by '##' (WordPiece), 'Ġ' (byte-level BPE) or "
            f"'▁' (SentencePiece), but of {len(pieces)} only {counts[mark]} begin with '{mark}'"
        )
    return mark


# Bytes that are split into Python strings at a time; these take twenty times as much memory.
_BLOCK = 1 << 20
_SHOWN_SYMBOLS = 10


class Chunk(NamedTuple):
    """Some whole lines of a file."""

    number: int
    """Number of the chunk, over all files."""
    path: Path
    lines_before: int
    """Number of lines of the file before this chunk."""
    text: bytes

    @property
    def lines(self) -> int:
        """The number of lines, including a last line without a line end."""
        return self.text.count(b"\n") + (not self.text.endswith(b"\n"))


def read_chunks(paths: Sequence[Path], size: int) -> Iterator[Chunk]:
    """Yield the whole lines of checked files in chunks of about `size` bytes."""
    numbers = count()
    for path in paths:
        lines = 0
        with open_bytes(path) as file:
            while text := file.read(size):
                chunk = Chunk(next(numbers), path, lines, text if text.endswith(b"\n") else text + file.readline())
                yield chunk
                lines += chunk.lines


class TokenText:
    """Converts text of symbols to ids."""

    def __init__(self, dictionary: PretrainedDictionary) -> None:
        self._ids = dictionary.indices
        self._line_end = f" {dictionary.eos_word} "

    def ids(self, chunk: Chunk) -> Iterator[np.ndarray]:
        """Yield the ids of a few lines at a time (N,), with eos at the end of each line.

        Raises:
            UserError: symbols are not in the dictionary.
        """
        start = 0
        while start < len(chunk.text):
            end = chunk.text.find(b"\n", start + _BLOCK) + 1 or len(chunk.text)
            block = chunk.text[start:end].decode("utf-8")
            symbols = block.replace("\n", self._line_end).split()
            try:
                ids = np.fromiter(map(self._ids.__getitem__, symbols), np.int32, len(symbols))
            except KeyError:
                lines_before = chunk.lines_before + chunk.text.count(b"\n", 0, start)
                raise self._unknown_symbols(chunk.path, lines_before, block) from None
            if symbols:
                yield ids
            start = end

    def _unknown_symbols(self, path: Path, lines_before: int, block: str) -> UserError:
        unknown: dict[str, int] = {}  # with the number of the first line that has the symbol
        for number, line in enumerate(block.split("\n"), lines_before + 1):
            for symbol in line.split():
                if symbol not in self._ids:
                    unknown.setdefault(symbol, number)
        shown = list(unknown.items())[:_SHOWN_SYMBOLS]
        return UserError.of(
            [f"{path}, line {number}: {symbol[:60]!r}" for symbol, number in shown],
            "--input needs files that s2sft tokenize wrote with this --tokenizer-dir, but its vocabulary lacks "
            f"{len(unknown)} symbols or more:",
        )
