"""Changes to the embedding tables of a converted model: more or fewer positions, and rows for added tokens."""

import logging
from collections.abc import Sequence

import torch
from torch import Tensor

from s2sft_fairseq.checkpoints.conversion import Conversion, Sizes, Weights
from s2sft_fairseq.checkpoints.deltalm import POSITIONS
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.search_bounds import MOST_POSITIONS

logger = logging.getLogger(__name__)

TABLE = "embeddings.positions.weight"
BIAS = "lm_head.bias"
OUTPUT = "lm_head.weight"
"""The output matrix of encoders whose output embedding is not their token embedding."""


def fold_row(weights: Weights, row: Tensor) -> None:
    """Add an embedding (H,) that all tokens share to the position table, in float32 at least."""
    if (table := weights.get(TABLE)) is None:
        return  # reported as missing later
    dtype = torch.promote_types(table.dtype, torch.float32)
    weights[TABLE] = table.to(dtype) + row.to(dtype)


def fold_segment(weights: Weights, sizes: Sizes) -> None:
    """If the segment table has only one row, add the row to all positions and remove the table."""
    segments = weights.get("embeddings.segments.weight")
    if segments is not None and len(segments) == 1:
        fold_row(weights, weights.pop("embeddings.segments.weight")[0])
        sizes["num_segments"] = 0


def resize_positions(weights: Weights, sizes: Sizes, rows: int) -> str:
    """Change the number of positions to ``rows``.

    A longer table is tiled as in s2s-ft: row i is row i mod the old length. A shorter table is cut.

    Returns:
        A note on what was done.

    Raises:
        UserError: if ``rows`` is out of range.
    """
    if not 1 <= rows <= MOST_POSITIONS:
        raise UserError(f"--max-positions must be between 1 and {MOST_POSITIONS:,}, but is {rows:,}")
    old, sizes["max_positions"] = sizes["max_positions"], rows
    tables = [name for name in (TABLE, *POSITIONS) if name in weights]
    if not tables:
        return f"positions: {rows} in place of {old}, as a limit only, for they are computed"
    first = max(len(weights[name]) for name in tables) - old  # fairseq's rows before the first position
    for name in tables:
        table = weights[name][first:]
        weights[name] = torch.cat([weights[name][:first], table[torch.arange(rows) % len(table)]])
    return f"position table: {'tiled' if rows > old else 'cut'} from {old} to {rows} rows"


def add_tokens(conversion: Conversion, symbols: list[str], requests: Sequence[str]) -> list[str]:
    """Add tokens to the weights and to the list of all symbols.

    Args:
        conversion: the conversion; its token embedding, and its output bias if it has one, get a row for each token.
        symbols: the symbols of the vocabulary in the order of their ids; extended in place.
        requests: ``NAME``, whose row is the mean of all rows, or ``NAME=OTHER``, whose row is a copy of that of another
            symbol. With the mean, the probability of the new token is near the average (Hewitt 2021). A ``NAME`` that
            the vocabulary has already is skipped.

    Returns:
        The new symbols.

    Raises:
        UserError: listing every request that is malformed, is given twice, copies an unknown symbol, or asks for a copy
            under a name that the vocabulary has already.
    """
    rows = {symbol: row for row, symbol in enumerate(symbols)}  # the last row of a repeated symbol counts
    names: list[str] = []
    sources: list[int | None] = []
    problems = []
    for request in requests:
        name, copies, other = request.partition("=")
        if not name or any(character.isspace() for character in name):
            problems.append(f"--add-token must be NAME or NAME=OTHER, without white space, but is {request!r}")
        elif name in rows and not copies:
            logger.info(f"--add-token {name}: the vocabulary holds it already, as id {rows[name]}")
            continue
        elif name in rows:
            problems.append(f"--add-token {name}: the vocabulary holds it already, as id {rows[name]}")
        elif name in names:
            problems.append(f"--add-token {name}: it is given twice")
        elif copies and other not in rows:
            problems.append(f"--add-token {request}: the vocabulary has no {other!r} to copy")
        names.append(name)
        sources.append(rows.get(other) if copies else None)
    if problems:
        raise UserError.of(problems)
    for name in (conversion.tokens, OUTPUT, BIAS):
        if (table := conversion.weights.get(name)) is not None and names:
            conversion.weights[name] = torch.cat([table, _new_rows(table, sources)])
    symbols += names
    return names


def _new_rows(table: Tensor, sources: Sequence[int | None]) -> Tensor:
    """Return a new row of the table (V, ...) for each source: a copy of that row, or for None the mean of all rows."""
    mean = table.float().mean(dim=0).to(table.dtype)
    return torch.stack([mean if row is None else table[row] for row in sources])
