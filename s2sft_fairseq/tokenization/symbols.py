"""The symbols of tokens: their spelling, their offsets in raw text, and tokens that are not split.

White space separates symbols in a dictionary and in tokenized text. So white space within a token is escaped, U+2028
for example as ``<U+2028>``.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, groupby, islice
from typing import NamedTuple

_WHITE_SPACE = re.compile(r"\s")
_WRITTEN = re.compile(r"<U\+([0-9A-F]{4,6})>")


def write_symbol(token: str) -> str:
    """Return the symbol of a token, with white space escaped."""
    return _WHITE_SPACE.sub(lambda found: f"<U+{ord(found[0]):04X}>", token)


def read_symbol(symbol: str) -> str:
    """Return the token of a symbol; the inverse of `write_symbol`."""
    return _WRITTEN.sub(_white_space, symbol)


def _white_space(found: re.Match[str]) -> str:
    character = chr(min(int(found[1], 16), 0x10FFFF))
    return character if _WHITE_SPACE.match(character) else found[0]


def spare_symbols(taken: Iterable[str]) -> Iterator[str]:
    """Yield names for ids without a token, in the form of fairseq's padding of a vocabulary."""
    taken = set(taken)
    return (name for number in count() if (name := f"madeupword{number:04d}") not in taken)


class Pieces(NamedTuple):
    """The symbols of a raw line.

    N: symbols.
    """

    symbols: list[str]
    """Symbols of the dictionary (N)."""
    offsets: list[tuple[int, int]]
    """The characters of the line of each symbol, the end exclusive (N); they may include white space."""


class KeptTokens:
    """Tokens that are not split in raw text, such as ``[X_SEP]``."""

    def __init__(self, tokens: Iterable[str], special: Iterable[str] = ()) -> None:
        """Take the tokens, and the special symbols, which only decoding leaves whole."""
        whole = frozenset(map(write_symbol, tokens))
        self.symbols = whole.union(special)
        longest_first = sorted(map(read_symbol, whole), key=len, reverse=True)
        never = "(?!)"
        self._pattern = re.compile(f"({'|'.join(map(re.escape, longest_first)) or never})")

    def encode_around(self, lines: Sequence[str], encode: Callable[[list[str]], Iterable[str]]) -> list[str]:
        """Encode the texts between the tokens in one call; return the symbols of each line, separated by spaces."""
        split = [self._pattern.split(line) for line in lines]  # text, token, text, ..., text
        encoded = iter(encode([text for parts in split for text in parts[::2]]))
        for parts in split:
            parts[::2] = islice(encoded, (len(parts) + 1) // 2)
            parts[1::2] = map(write_symbol, parts[1::2])
        return [parts[0] if len(parts) == 1 else " ".join(filter(None, parts)) for parts in split]

    def pieces_around(self, line: str, encode: Callable[[str], Pieces]) -> Pieces:
        """Encode the texts between the tokens of a line, with offsets in the whole line."""
        found, start = Pieces([], []), 0
        for number, part in enumerate(self._pattern.split(line)):
            pieces = Pieces([write_symbol(part)], [(0, len(part))]) if number % 2 else encode(part)
            found.symbols.extend(pieces.symbols)
            found.offsets.extend((start + first, start + end) for first, end in pieces.offsets)
            start += len(part)
        return found

    def decode_around(self, symbols: Iterable[str], decode: Callable[[list[str]], str]) -> str:
        """Decode the symbols between the tokens, and join texts and tokens with spaces."""

        def texts() -> Iterator[str]:
            for kept, run in groupby(symbols, self.symbols.__contains__):
                tokens = list(map(read_symbol, run))
                yield " ".join(tokens) if kept else decode(tokens)

        return " ".join(texts())
