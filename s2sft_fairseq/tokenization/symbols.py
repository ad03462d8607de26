"""White space within a symbol, written so that a dictionary and tokenized text, which break at it, can hold it."""

import re
from collections.abc import Iterable, Iterator
from itertools import count

_WHITE_SPACE = re.compile(r"\s")
_WRITTEN = re.compile(r"<U\+([0-9A-F]{4,6})>")


def write_symbol(token: str) -> str:
    """Return the symbol of a token: every white space character, U+2028 for example, becomes ``<U+2028>``."""
    return _WHITE_SPACE.sub(lambda found: f"<U+{ord(found[0]):04X}>", token)


def read_symbol(symbol: str) -> str:
    """Return the token of a symbol; the inverse of `write_symbol`."""
    return _WRITTEN.sub(_white_space, symbol)


def _white_space(found: re.Match[str]) -> str:
    character = chr(min(int(found[1], 16), 0x10FFFF))
    return character if _WHITE_SPACE.match(character) else found[0]


def spare_symbols(taken: Iterable[str]) -> Iterator[str]:
    """Yield names for ids that no token has, as fairseq names those that pad a vocabulary to a round number."""
    taken = set(taken)
    return (name for number in count() if (name := f"madeupword{number:04d}") not in taken)
