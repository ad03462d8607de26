"""Symbols of a line together with the places that they come from."""

from typing import NamedTuple


class Pieces(NamedTuple):
    """The symbols of a raw line.

    N: symbols.
    """

    symbols: list[str]
    """Of the dictionary (N)."""
    offsets: list[tuple[int, int]]
    """The characters of the line that each symbol stands for, the end exclusive (N); white space may be among them."""
