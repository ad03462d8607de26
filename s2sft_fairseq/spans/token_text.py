"""Files of symbols separated by spaces, as ``s2sft tokenize`` writes them, to token ids."""

from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.data.text_files import open_bytes
from s2sft_fairseq.errors import UserError

# Bytes that become Python strings at a time: these take twenty times as much memory.
_BLOCK = 1 << 20
_SHOWN_SYMBOLS = 10


class Chunk(NamedTuple):
    """Some whole lines of a file."""

    number: int
    """Of the chunk, over all files."""
    path: Path
    lines_before: int
    """Lines of the file that stand before it."""
    text: bytes

    @property
    def lines(self) -> int:
        """How many lines these are, counting a last one without an end."""
        return self.text.count(b"\n") + (not self.text.endswith(b"\n"))


def read_chunks(paths: Sequence[Path], size: int) -> Iterator[Chunk]:
    """Yield the lines of checked files, as many at a time as make up `size` bytes."""
    numbers = count()
    for path in paths:
        lines = 0
        with open_bytes(path) as file:
            while text := file.read(size):
                chunk = Chunk(next(numbers), path, lines, text if text.endswith(b"\n") else text + file.readline())
                yield chunk
                lines += chunk.lines


class TokenText:
    """Gives symbols their ids."""

    def __init__(self, dictionary: PretrainedDictionary) -> None:
        self._ids = dictionary.indices
        self._line_end = f" {dictionary.eos_word} "

    def ids(self, chunk: Chunk) -> Iterator[np.ndarray]:
        """Yield the ids of some lines at a time (N,): the end of each line is the symbol eos.

        Raises:
            UserError: if symbols are not in the dictionary.
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
        unknown: dict[str, int] = {}  # and the number of the line where each stands first
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
