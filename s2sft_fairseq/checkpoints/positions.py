"""Changes to the position table of a converted encoder."""

import torch
from torch import Tensor

from s2sft_fairseq.checkpoints.conversion import Sizes, Weights
from s2sft_fairseq.checkpoints.deltalm import POSITIONS
from s2sft_fairseq.errors import UserError

TABLE = "embeddings.positions.weight"


def fold_row(weights: Weights, row: Tensor) -> None:
    """Add an embedding (H,) that every token gets to the position table, in single precision at least."""
    if (table := weights.get(TABLE)) is None:
        return  # reported as missing later
    dtype = torch.promote_types(table.dtype, torch.float32)
    weights[TABLE] = table.to(dtype) + row.to(dtype)


def fold_segment(weights: Weights, sizes: Sizes) -> None:
    """Fold a segment table of one row, which every token gets, into the positions; then there is none any more."""
    segments = weights.get("embeddings.segments.weight")
    if segments is not None and len(segments) == 1:
        fold_row(weights, weights.pop("embeddings.segments.weight")[0])
        sizes["num_segments"] = 0


def resize_positions(weights: Weights, sizes: Sizes, rows: int) -> str:
    """Make room for ``rows`` positions, or less.

    A longer table is tiled, row i being row i mod the old length, as s2s-ft does; a shorter one is cut.

    Returns:
        What was done, in a sentence.

    Raises:
        UserError: if ``rows`` is not positive.
    """
    if rows < 1:
        raise UserError(f"--max-positions must be at least 1, but is {rows}")
    old, sizes["max_positions"] = sizes["max_positions"], rows
    tables = [name for name in (TABLE, *POSITIONS) if name in weights]
    if not tables:
        return f"positions: {rows} in place of {old}, as a limit only, for they are computed"
    first = max(len(weights[name]) for name in tables) - old  # rows that no position has: fairseq's, up to padding
    for name in tables:
        table = weights[name][first:]
        weights[name] = torch.cat([weights[name][:first], table[torch.arange(rows) % len(table)]])
    return f"position table: {'tiled' if rows > old else 'cut'} from {old} to {rows} rows"
