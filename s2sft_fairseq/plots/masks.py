"""The packed sequence of an example and who sees whom in it, as a picture and as numbers."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from s2sft_fairseq.files import write_whole
from s2sft_fairseq.modules.visibility import visible
from s2sft_fairseq.objectives.blocks import WHOLE, Blocks
from s2sft_fairseq.objectives.finetuning import Corruption
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.packing import PackedBatch, collate
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm

SPECIAL = ("[CLS]", "[SEP]", "[PAD]")
CELL = 0.27
"""Inches of a cell."""
GREYS = {"source": 0.85, "target": 0.6, "placeholder": 0.25}
"""How bright a cell is, by what its key is."""


class PackedExample(NamedTuple):
    """A packed example, in words. T: its tokens."""

    batch: PackedBatch
    """Its columns."""
    tokens: tuple[str, ...]
    """(T,)."""
    labels: tuple[str, ...]
    """What is predicted at each token, "" where nothing is (T,)."""
    sees: np.ndarray
    """Whether a query, the row, sees a key, the column (T, T)."""

    def kinds(self) -> list[str]:
        """Return what each token is, one of `GREYS`."""
        columns = zip(self.batch.group.tolist(), self.batch.step.tolist(), strict=True)
        return ["placeholder" if group else "target" if step else "source" for group, step in columns]


def pack_words(
    method: str, source: Sequence[str], target: Sequence[str], *, cut: Blocks, corruption: Corruption, seed: int = 1
) -> PackedExample:
    """Pack a source and a target, in words, as the objective of that name does in training.

    Args:
        method: one of `OBJECTIVES`.
        source: its words; ``[SEP]`` stands between fields.
        target: its words.
        cut: how the target is cut into blocks, where the objective does so.
        corruption: of source and target.
        seed: of what is drawn.
    """
    objective = OBJECTIVES[method]
    placeholder = objective.placeholder or "[M]"
    symbols = list(dict.fromkeys([*SPECIAL, placeholder, *source, *target]))
    of_symbol = {symbol: number for number, symbol in enumerate(symbols)}
    cls, sep, pad = (of_symbol[symbol] for symbol in SPECIAL)
    form = SequenceForm(
        cls=cls,
        sep=sep,
        pad=pad,
        placeholder=of_symbol[placeholder],
        vocab_size=len(symbols),
        starts_with=objective.starts_with,
        max_source=len(source) + 2,
        # The last block goes on behind the end of the target, unless it is the target.
        max_target=len(target) + (1 if cut.greatest == WHOLE else cut.greatest),
    )
    if objective.cut is not None:
        objective = objective.with_blocks(cut)
    rows = (
        form.source(np.array([of_symbol[word] for word in source], dtype=np.int64)),
        form.target(np.array([of_symbol[word] for word in target], dtype=np.int64)),
    )
    sides = (Ragged.of([row]) for row in rows)
    batch = collate([objective.pack(*sides, form, corruption, Draws(seed, 0, np.array([0])))])
    step, group = torch.from_numpy(batch.step), torch.from_numpy(batch.group)
    return PackedExample(
        batch,
        tuple(symbols[number] for number in batch.token),
        tuple("" if number == pad else symbols[number] for number in batch.label),
        visible(step, group, step, group).numpy(),
    )


def write_csv(example: PackedExample, file: Path) -> None:
    """Write a row for each token: its columns, then 1 for each token that it sees and 0 for the others."""
    batch = example.batch

    def write(path: Path) -> None:
        with path.open("w", encoding="utf-8", newline="") as stream:
            rows = csv.writer(stream, lineterminator="\n")
            rows.writerow(["token", "position", "segment", "step", "group", "label", *example.tokens])
            columns = (column.tolist() for column in (batch.position, batch.segment, batch.step, batch.group))
            for token, *numbers, label, seen in zip(
                example.tokens, *columns, example.labels, example.sees.astype(int).tolist(), strict=True
            ):
                rows.writerow([token, *numbers, label, *seen])

    write_whole(file, write)


def draw(example: PackedExample, file: Path) -> None:
    """Draw the matrix: a row is a query, a column a key, and a dark cell a key that is seen.

    Args:
        example: what is drawn.
        file: of the picture; its ending is the format, such as .png or .svg.
    """
    from matplotlib.figure import Figure

    count = len(example.tokens)
    brightness = np.array([GREYS[kind] for kind in example.kinds()])
    figure = Figure(figsize=(CELL * count + 2.5, CELL * count + 1.5), layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(np.where(example.sees, brightness, 1.0), cmap="gray", vmin=0, vmax=1)
    columns = zip(example.tokens, example.batch.position.tolist(), example.labels, strict=True)
    names = [f"{token}  {position}" + (f"  → {label}" if label else "") for token, position, label in columns]
    axes.set_yticks(range(count), names, fontsize=8)
    axes.set_xticks(range(count), example.tokens, fontsize=8, rotation=90)
    axes.tick_params(top=True, bottom=False, labeltop=True, labelbottom=False, length=0)
    # Thin lines between tokens, thick ones between sections of the packed sequence.
    axes.hlines(np.arange(1, count) - 0.5, -0.5, count - 0.5, color="0.8", linewidth=0.5)
    axes.vlines(np.arange(1, count) - 0.5, -0.5, count - 0.5, color="0.8", linewidth=0.5)
    for edge in np.flatnonzero(np.diff(example.batch.section())) + 0.5:
        axes.axhline(edge, color="black", linewidth=1.2)
        axes.axvline(edge, color="black", linewidth=1.2)
    axes.set_xlabel("key: light grey source, grey target, dark placeholder", fontsize=8)
    axes.set_ylabel("query: token, position → what is predicted", fontsize=8)
    write_whole(file, lambda path: figure.savefig(path, format=file.suffix[1:], dpi=150))
