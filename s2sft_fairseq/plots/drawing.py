"""Parts that pictures share: files, tables of numbers, and the axes of a matrix over the tokens of a sequence."""

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from s2sft_fairseq.files import write_whole

CELL = 0.27
"""Inches of a cell of a matrix."""
LINES: Sequence[Any] = ("-", "--", ":", "-.", (0, (6, 1)), (0, (4, 1, 1, 1, 1, 1)))
TONES = ("black", "0.55")
MARKERS = "osD^vPX*"
"""Lines differ by style and tone, points by shape: pictures are readable in black and white."""


def save(figure: Any, file: Path) -> None:
    """Write a picture of matplotlib; the ending of the name is the format, such as .png or .svg."""
    write_whole(file, lambda path: figure.savefig(path, format=file.suffix[1:], dpi=150))


def write_table(file: Path, heading: Sequence[object], rows: Iterable[Sequence[object]]) -> None:
    """Write a CSV file."""

    def write(path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="") as stream:
            table = csv.writer(stream, lineterminator="\n")
            table.writerow(heading)
            table.writerows(rows)

    write_whole(file, write)


def token_axes(count: int) -> tuple[Any, Any]:
    """Return a figure and its axes for a matrix over tokens, count by count."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(CELL * count + 2.5, CELL * count + 1.5), layout="constrained")
    return figure, figure.add_subplot()


def name_tokens(
    axes: Any, tokens: Sequence[str], positions: Sequence[int], labels: Sequence[str], section: np.ndarray
) -> None:
    """Name the rows and columns of a matrix that was drawn, with thick lines between the sections.

    Args:
        axes: of `token_axes`.
        tokens: of the packed sequence (T,).
        positions: of the tokens (T,).
        labels: the tokens that are predicted, "" where none is (T,).
        section: number of the section of each token (T,).
    """
    count = len(tokens)
    columns = zip(tokens, positions, labels, strict=True)
    names = [f"{token}  {position}" + (f"  → {label}" if label else "") for token, position, label in columns]
    axes.set_yticks(range(count), names, fontsize=8)
    axes.set_xticks(range(count), tokens, fontsize=8, rotation=90)
    axes.tick_params(top=True, bottom=False, labeltop=True, labelbottom=False, length=0)
    axes.hlines(np.arange(1, count) - 0.5, -0.5, count - 0.5, color="0.8", linewidth=0.5)
    axes.vlines(np.arange(1, count) - 0.5, -0.5, count - 0.5, color="0.8", linewidth=0.5)
    for edge in np.flatnonzero(np.diff(section)) + 0.5:
        axes.axhline(edge, color="black", linewidth=1.2)
        axes.axvline(edge, color="black", linewidth=1.2)
    axes.set_ylabel("query: token, position → what is predicted", fontsize=8)
