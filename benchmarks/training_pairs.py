"""The pairs that every system of `train.py` is given, and the symbols that they are made of.

Nothing of the package is imported here: what it changes in its process must not reach the system beside it.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from training_grid import Cell

PAD, UNK, CLS, SEP, MASK = range(5)
SPECIAL_SYMBOLS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FIRST_WORD = len(SPECIAL_SYMBOLS)

LABEL_SMOOTHING, DROPOUT = 0.1, 0.1
LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, CLIP_NORM = 5e-5, (0.9, 0.999), 1e-6, 0.01, 1.0


class Pair(NamedTuple):
    """Ids without special symbols; n and m are their numbers."""

    source: np.ndarray
    """(n,)"""
    target: np.ndarray
    """(m,)"""
    masked: np.ndarray
    """Places in the target and the ``[SEP]`` behind it, sorted, that masked fine-tuning masks in the plain system. Ours
    draws as many of its own."""


class Outcome(NamedTuple):
    """What an update says."""

    loss: float
    """The mean over its labels, in nats."""
    positions: int
    """Positions that the layers worked on, padding and placeholders among them."""


System = Callable[[Sequence[Pair]], Outcome]
"""An update on the pairs of a batch."""


def pair_lengths(cell: Cell) -> list[tuple[int, int]]:
    """Return the positions of source and target of each example: the same in every update.

    Of N examples the i-th source is as long as a share of (i + 1/2) / N of all sources at most, and so for the targets
    in another order. So each batch has the work of a typical one, and the least time of several tells something.
    """
    shares = [(index + 0.5) / cell.batch for index in range(cell.batch)]
    order = np.random.default_rng(cell.batch).permutation(cell.batch)
    sources = [cell.shape.source.at(share) for share in shares]
    targets = [cell.shape.target.at(shares[index]) for index in order]
    return list(zip(sources, targets, strict=True))


def draw_pairs(cell: Cell, update: int) -> list[Pair]:
    """Draw the pairs of an update: random words, so many that they have their lengths with the special symbols."""
    rng = np.random.default_rng((cell.seed, update))
    specials = 1 if cell.objective == "causal" else 2

    def words(number: int) -> np.ndarray:
        return rng.integers(FIRST_WORD, cell.vocab, size=number)

    def places(target: int) -> np.ndarray:
        return np.sort(rng.choice(target, cell.labels(target), replace=False))

    return [Pair(words(source - specials), words(target - 1), places(target)) for source, target in pair_lengths(cell)]
