"""The pairs that all systems of `train.py` train on, and their symbols.

This module does not import the package, whose changes to its process must not affect other systems.
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
    """A pair of ids without special symbols: n of the source and m of the target."""

    source: np.ndarray
    """(n,)"""
    target: np.ndarray
    """(m,)"""
    masked: np.ndarray
    """Sorted places in the target and its final ``[SEP]`` that masked fine-tuning masks in the plain system. Ours
    draws as many places itself."""


class Outcome(NamedTuple):
    """The outcome of an update."""

    loss: float
    """The mean over its labels, in nats."""
    positions: int
    """Positions that the layers compute, padding and placeholders included."""


System = Callable[[Sequence[Pair]], Outcome]
"""An update on the pairs of a batch."""


def pair_lengths(cell: Cell) -> list[tuple[int, int]]:
    """Return the positions of source and target of each example: the same in every update.

    Of N examples, the i-th source (from 0) has the length of the quantile (i + 1/2) / N of all sources. Targets have
    the same quantiles of all targets, in another order. So each batch has the work of a typical batch, and the fastest
    of several updates is meaningful.
    """
    shares = [(index + 0.5) / cell.batch for index in range(cell.batch)]
    order = np.random.default_rng(cell.batch).permutation(cell.batch)
    sources = [cell.shape.source.at(share) for share in shares]
    targets = [cell.shape.target.at(shares[index]) for index in order]
    return list(zip(sources, targets, strict=True))


def draw_pairs(cell: Cell, update: int) -> list[Pair]:
    """Draw the pairs of an update: random words. Special symbols bring the pairs to their lengths."""
    rng = np.random.default_rng((cell.seed, update))
    specials = 1 if cell.objective == "causal" else 2

    def words(number: int) -> np.ndarray:
        return rng.integers(FIRST_WORD, cell.vocab, size=number)

    def places(target: int) -> np.ndarray:
        return np.sort(rng.choice(target, cell.labels(target), replace=False))

    return [Pair(words(source - specials), words(target - 1), places(target)) for source, target in pair_lengths(cell)]
