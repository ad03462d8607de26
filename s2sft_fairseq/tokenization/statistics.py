"""Statistics of tokenized text: lengths of lines, unknown symbols, lines with separators."""

from collections import Counter
from dataclasses import dataclass, field

FEW_UNKNOWN, MANY_UNKNOWN = 3, 0.05
"""The number of unknown symbols, and their share of all symbols, above which a warning names them."""


def unknown_warning(what: object, unknown: int, symbols: int, example: str) -> str:
    """Return a warning if many symbols of a text are unknown, otherwise "".

    Args:
        what: names the text.
        unknown: number of unknown symbols.
        symbols: number of all symbols.
        example: a text with unknown symbols.
    """
    if unknown < FEW_UNKNOWN or unknown <= MANY_UNKNOWN * symbols:
        return ""
    return f"{what}: {unknown:,} of {symbols:,} symbols are unknown to the vocabulary, such as in {example}"


@dataclass
class PieceStats:
    """Statistics of a tokenized file."""

    lengths: Counter[int] = field(default_factory=Counter)
    """The number of lines by length in symbols."""
    unknown: int = 0
    """The number of unknown symbols."""
    divided: int = 0
    """The number of lines in which separators begin further fields."""
    example: str = ""
    """A text with an unknown symbol, and its symbols."""

    def add(self, other: "PieceStats") -> None:
        """Add the counts of another part of the file."""
        self.lengths.update(other.lengths)
        self.unknown += other.unknown
        self.divided += other.divided
        self.example = self.example or other.example

    def __str__(self) -> str:
        in_order = sorted(self.lengths.elements())
        lines = len(in_order)
        divided = f"; {self.divided:,} lines have separators, which begin further fields" if self.divided else ""
        return (
            f"{lines:,} lines; pieces a line: mean {sum(in_order) / lines:.1f}, "
            f"95 % have at most {in_order[(95 * lines - 1) // 100]}, longest {in_order[-1]:,}; {self.unknown:,} unknown"
            f"{divided}"
        )

    def warning(self, what: object) -> str:
        """Return a warning if many symbols are unknown, otherwise ""."""
        symbols = sum(length * lines for length, lines in self.lengths.items())
        return unknown_warning(what, self.unknown, symbols, self.example)
