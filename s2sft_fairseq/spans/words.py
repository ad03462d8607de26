"""Whole words of token ids: where they begin, and numbers for those that are looked for."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.objectives.ragged import Ragged


@dataclass(frozen=True)
class Words:
    """The words of a stretch of tokens, one after the other.

    Shape:
        N: tokens, W: words.
    """

    tokens: np.ndarray
    """The ids (N,)."""
    first: np.ndarray
    """The index of the first token of each word (W,)."""
    special: np.ndarray
    """Tells special symbols from other words: boolean (W,)."""

    @property
    def lengths(self) -> np.ndarray:
        """The number of tokens of each word (W,)."""
        return np.diff(self.first, append=len(self.tokens))

    def spellings(self, chosen: np.ndarray | slice = slice(None)) -> list[bytes]:
        """Return what identifies each of the chosen words exactly: its ids, four bytes each, the highest one first.

        So spellings are in the order of the ids.
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
    """Tells by the tokens where words begin, for a vocabulary of V symbols.

    A special symbol is a word by itself, and ends the word before it.
    """

    continues: np.ndarray
    """Which symbols go on the word before them, boolean (V,)."""
    special: np.ndarray
    """Which symbols are special, boolean (V,); none of these goes on a word."""

    @classmethod
    def of(cls, dictionary: PretrainedDictionary, continues: Iterable[int]) -> "WordRule":
        """Take the ids of the symbols that go on the word before them."""
        special = np.zeros(len(dictionary), bool)
        special[[*dictionary.never_generated(), dictionary.eos()]] = True
        marked = np.zeros(len(dictionary), bool)
        marked[np.fromiter(continues, np.int64)] = True
        return cls(marked & ~special, special)

    def split(self, tokens: np.ndarray, row_starts: np.ndarray) -> Words:
        """Split rows of tokens into words.

        Args:
            tokens: the ids of all rows, one after the other (N,).
            row_starts: indices of the first tokens of the rows, which begin words in any case (B,).
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
    """Numbers some words from 0, in the order of their ids."""

    def __init__(self, spellings: Sequence[bytes], num_symbols: int) -> None:
        """Take the spellings of the words, sorted and each one once, and the size of the vocabulary."""
        self._of_spelling = {spelling: number for number, spelling in enumerate(spellings)}
        # Most words are single tokens.
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
        """Return the number of each word, -1 for those without (W,)."""
        numbers = self._of_token[words.tokens[words.first]]
        several = np.flatnonzero(words.lengths > 1)
        number_of = self._of_spelling.get
        numbers[several] = [number_of(spelling, -1) for spelling in words.spellings(several)]
        return numbers
