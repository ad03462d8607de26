"""Blockwise masking and factorization: which tokens UniLMv2 masks, and in which order (Algorithm 1 of the paper).

The algorithm draws a place and a length until enough is masked, and draws again where something is masked already, so
that blocks come less often than it says. Here the lengths are drawn first; then every way to place them is equally
likely, and every order, so that lengths and order are what the paper says they are.
"""

from dataclasses import dataclass

import numpy as np

from s2sft_fairseq.objectives.draws import Draws
from s2sft_fairseq.objectives.ragged import Ragged


@dataclass(frozen=True)
class BlockwiseMasking:
    """How tokens are masked; the values are those of the paper."""

    ratio: float = 0.15
    """Share of the tokens of a text that are masked at least: the last factorization step is not cut."""
    block_prob: float = 0.4
    """Probability that a factorization step is a block of several tokens, and not one token."""
    block_lengths: tuple[int, int] = (2, 6)
    """Least and greatest length of a block, uniform."""

    def problems(self, block_lengths: str) -> list[str]:
        """What is wrong with these values, a sentence each; the lengths are quoted as they were given."""
        found = []
        if not 0 < self.ratio < 1:
            found.append(f"--mask-ratio must be above 0 and below 1, but is {self.ratio:g}")
        if not 0 <= self.block_prob <= 1:
            found.append(f"--block-prob must be between 0 and 1, but is {self.block_prob:g}")
        least, greatest = self.block_lengths
        if not 1 <= least <= greatest:
            found.append(f"--block-lengths must be a range of at least 1, such as 2-6, but is {block_lengths}")
        return found

    def least_masked(self, lengths: np.ndarray) -> np.ndarray:
        """Return how many tokens are masked at least, from the lengths of the texts (B,)."""
        return np.ceil(self.ratio * lengths).astype(np.int64)

    def most_masked(self, lengths: np.ndarray) -> np.ndarray:
        """Return how many tokens are masked at most, from the lengths of the texts (B,)."""
        longest = self.block_lengths[1] if self.block_prob else 1
        return np.minimum(self.least_masked(lengths) + longest - 1, lengths)

    def draw(self, text: Ragged, draws: Draws) -> np.ndarray:
        """Draw the masked tokens and their factorization order.

        Args:
            text: what may be masked, at least one token of each text.
            draws: random numbers for these texts.

        Returns:
            The factorization step of each token, from 1, and 0 for those that are not masked; int64 (N,).
        """
        blocks = self._draw_lengths(text.lengths, draws)
        masked = np.bincount(blocks.row, weights=blocks.values, minlength=len(text.lengths)).astype(np.int64)
        # A text is a row of units, each a block or a token that stays.
        units = _rows(text.lengths - masked + blocks.lengths)
        rank = units.with_values(draws.random(units)).rank()
        is_block = rank < blocks.lengths[units.row]
        starts = np.cumsum(blocks.lengths) - blocks.lengths
        tokens = np.ones_like(rank)
        tokens[is_block] = blocks.values[(starts[units.row] + rank)[is_block]]
        return np.repeat(np.where(is_block, rank + 1, 0), tokens)

    def _draw_lengths(self, lengths: np.ndarray, draws: Draws) -> Ragged:
        """Draw the lengths of the factorization steps of each text, from its own length (B,)."""
        needed = self.least_masked(lengths)
        drawn = _rows(needed)  # as many as there may be at most
        least, greatest = self.block_lengths
        of_block = least + draws.integers(greatest - least + 1, drawn)
        values = np.where(draws.random(drawn) < self.block_prob, of_block, 1)
        totals = np.cumsum(values)
        starts = np.cumsum(needed) - needed
        before = totals - values - np.concatenate([[0], totals])[starts][drawn.row]
        kept = before < needed[drawn.row]
        # A short text may have no room for the whole of the last one.
        fitting = np.minimum(values, lengths[drawn.row] - before)
        return Ragged(fitting[kept], np.bincount(drawn.row[kept], minlength=len(lengths)))


def _rows(lengths: np.ndarray) -> Ragged:
    """Rows of these lengths, whose values do not matter."""
    return Ragged(np.zeros(int(lengths.sum())), lengths)
