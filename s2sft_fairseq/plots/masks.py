"""The packed sequence of an example and who sees whom in it, as a picture and as numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from s2sft_fairseq.modules.visibility import visible
from s2sft_fairseq.objectives.blocks import WHOLE, Blocks
from s2sft_fairseq.objectives.finetuning import Corruption
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.packing import PackedBatch, collate
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm
from s2sft_fairseq.plots.drawing import name_tokens, save, token_axes, write_table

SPECIAL = ("[CLS]", "[SEP]", "[PAD]")
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
    columns = (column.tolist() for column in (batch.position, batch.segment, batch.step, batch.group))
    rows = zip(example.tokens, *columns, example.labels, example.sees.astype(int).tolist(), strict=True)
    heading = ["token", "position", "segment", "step", "group", "label", *example.tokens]
    write_table(file, heading, ([*columns, *seen] for *columns, seen in rows))


def draw(example: PackedExample, file: Path) -> None:
    """Draw the matrix: a row is a query, a column a key, and a dark cell a key that is seen.

    Args:
        example: what is drawn.
        file: of the picture; its ending is the format, such as .png or .svg.
    """
    figure, axes = token_axes(len(example.tokens))
    brightness = np.array([GREYS[kind] for kind in example.kinds()])
    axes.imshow(np.where(example.sees, brightness, 1.0), cmap="gray", vmin=0, vmax=1)
    positions, section = example.batch.position.tolist(), example.batch.section()
    name_tokens(axes, example.tokens, positions, example.labels, section)
    axes.set_xlabel("key: light grey source, grey target, dark placeholder", fontsize=8)
    save(figure, file)
