"""Tokens that stay whole where raw text holds them, for libraries that know nothing of such."""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, islice

from s2sft_fairseq.tokenization.pieces import Pieces
from s2sft_fairseq.tokenization.symbols import read_symbol, write_symbol


class KeptTokens:
    """Splits lines at these tokens."""

    def __init__(self, tokens: Iterable[str]) -> None:
        self.symbols = frozenset(map(write_symbol, tokens))
        longest_first = sorted(map(read_symbol, self.symbols), key=len, reverse=True)
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def encode_around(self, lines: Sequence[str], encode: Callable[[list[str]], Iterable[str]]) -> list[str]:
        """Encode what lies between the tokens, all at once; each text becomes its symbols, separated by spaces."""
        split = [self._pattern.split(line) for line in lines]  # text, token, text, ..., text
        encoded = iter(encode([text for parts in split for text in parts[::2]]))
        for parts in split:
            parts[::2] = islice(encoded, (len(parts) + 1) // 2)
            parts[1::2] = map(write_symbol, parts[1::2])
        return [parts[0] if len(parts) == 1 else " ".join(filter(None, parts)) for parts in split]

    def pieces_around(self, line: str, encode: Callable[[str], Pieces]) -> Pieces:
        """Encode what lies between the tokens of a line, with the places in the whole line."""
        found, start = Pieces([], []), 0
        for number, part in enumerate(self._pattern.split(line)):
            pieces = Pieces([write_symbol(part)], [(0, len(part))]) if number % 2 else encode(part)
            found.symbols.extend(pieces.symbols)
            found.offsets.extend((start + first, start + end) for first, end in pieces.offsets)
            start += len(part)
        return found

    def decode_around(self, symbols: Iterable[str], decode: Callable[[list[str]], str]) -> str:
        """Decode what lies between the tokens, and join both with spaces."""

        def texts() -> Iterator[str]:
            for kept, run in groupby(symbols, self.symbols.__contains__):
                tokens = list(map(read_symbol, run))
                yield " ".join(tokens) if kept else decode(tokens)

        return " ".join(texts())
