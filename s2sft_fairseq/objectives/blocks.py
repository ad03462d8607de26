"""Fine-tuning in blocks. Pseudo-masked fine-tuning has blocks of one token, masked diffusion one block for the target.

A target is cut into blocks, one behind the other. The placeholders of a block see each other, the source, and the
target before the block. Some of them hold the token that they stand for. The others hold the placeholder and are
predicted, so that decoding can fill a block in any order, one token or several in a pass.

With one block for the target this is the masked diffusion of MDLM (Sahoo et al., 2024), with shorter ones the block
diffusion of BD3-LM (Arriola et al., 2025). One thing differs from BD3-LM: the content of a target sees itself from left
to right, whatever the blocks. So its keys and values are the same in every way of decoding.

What stands behind the ``[SEP]`` in the last block is ``[SEP]`` again, and predicted like all else: in decoding a block
begins before it is known where the text ends.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from s2sft_fairseq.objectives.finetuning import Corruption, pseudo_masked
from s2sft_fairseq.objectives.packing import PackedBatch, PackedExamples, Section
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm

LENGTHS = "a number from 1 on, random, random:N or target"
"""What ``--block-length`` may be."""
LONGEST = 8
"""Of random lengths, unless it is given."""
WHOLE = 1 << 31
"""A length that no target exceeds."""


class Schedule(NamedTuple):
    """How much of a block is masked."""

    share: Callable[[np.ndarray], np.ndarray]
    """From a uniform number u in (0, 1] to the masked share t in (0, 1], which grows with it."""
    probability: Callable[[np.ndarray], np.ndarray] | None
    """From t to the probability of a share of at most t, the inverse function; None if it has no inverse."""


SCHEDULES: Mapping[str, Schedule] = {
    "uniform": Schedule(lambda u: u, lambda t: t),
    # Large shares come more often (MaskGIT, Chang et al., 2022).
    "cosine": Schedule(lambda u: np.sin(u * np.pi / 2), lambda t: np.arcsin(t) * 2 / np.pi),
    # Only the first pass of each block is learned.
    "full": Schedule(np.ones_like, None),
}
WEIGHTS = ("even", "bound")


@dataclass(frozen=True)
class Blocks:
    """How targets are cut into blocks, and how these are masked."""

    least: int = 1
    """Fewest tokens of a block."""
    greatest: int = LONGEST
    """Most tokens of a block; lengths between the two are equally likely."""
    single_share: float = 0.0
    """Share of the targets whose blocks are all of one token, as in decoding token by token."""
    schedule: str = "uniform"
    """How much of a block is masked, one of `SCHEDULES`."""
    weight: str = "even"
    """Weight of the labels. ``even``: all alike; ``bound``: so that the loss of a block is, on average, an upper bound
    of the negative log-likelihood of its tokens."""

    def problems(self) -> list[str]:
        """What is wrong with these values, a sentence each."""
        found = []
        if not 0 <= self.single_share <= 1:
            found.append(f"--single-share must be between 0 and 1, but is {self.single_share:g}")
        if self.weight == "bound" and SCHEDULES[self.schedule].probability is None:
            found.append(f"--block-loss-weight bound needs another --noise-schedule than {self.schedule}")
        return found

    def whole(self, max_target: int) -> bool:
        """Tell whether every target is one block, so that no placeholder sees content."""
        return self.least >= max_target and not self.single_share

    def positions(self, lengths: np.ndarray, max_target: int) -> np.ndarray:
        """Return how many positions content and placeholders take at most.

        Args:
            lengths: of laid-out targets (B,).
            max_target: most positions of a target.
        """
        if self.whole(max_target):
            return np.full_like(lengths, max_target)
        is_fixed = self.least == self.greatest
        filled = -(-lengths // self.least) * self.least if is_fixed else lengths + self.greatest - 1
        positions: np.ndarray = lengths + np.minimum(filled, max_target)
        return positions

    def draw_lengths(self, lengths: np.ndarray, max_target: int, draws: Draws) -> Ragged:
        """Draw the lengths of the blocks of each target; the last one may go beyond its end.

        Args:
            lengths: of laid-out targets (B,).
            max_target: where the last block of a target ends at the latest.
            draws: random numbers for these targets.
        """
        block_prob = np.ones(len(lengths))
        if self.single_share:
            block_prob[draws.random(Ragged.of_lengths(np.ones_like(lengths))) < self.single_share] = 0
        bounds = min(self.least, max_target), min(self.greatest, max_target)
        return draw_lengths(lengths, np.full_like(lengths, max_target), bounds, block_prob, draws)

    def weights(self, batch: PackedBatch, labelled: np.ndarray) -> np.ndarray | None:
        """Return the weight of each label of a batch.

        Of a block of N tokens k are predicted. With the uniform schedule each k is equally likely, and the weight N / k
        makes the loss that of MDLM, whose integral over t is then a sum over k (Nie et al., 2025, equation 6). With
        another schedule N / k is divided by N times the probability of k.

        Args:
            batch: packed examples (T tokens).
            labelled: the numbers of its tokens that are predicted (L,).

        Returns:
            Weights (L,), or None where all are 1.
        """
        if self.weight == "even":
            return None
        members, predicted = _members(batch, labelled)
        of_share = SCHEDULES[self.schedule].probability
        assert of_share is not None, "problems() tells"
        probability = of_share(predicted / members) - of_share((predicted - 1) / members)
        weights: np.ndarray = 1 / (predicted * probability)
        return weights

    def divisor(self, batch: PackedBatch, labelled: np.ndarray) -> int:
        """Return what the loss of a batch is divided by: the labels, or with ``bound`` all tokens of the blocks."""
        return len(labelled) if self.weight == "even" else int((batch.group > 0).sum())


def _members(batch: PackedBatch, labelled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how many tokens the block of each label has, and how many of them are predicted, both (L,)."""
    examples = np.repeat(np.arange(len(batch.lengths)), [sum(lengths) for lengths in batch.lengths])
    # Groups are numbered within an example.
    block = examples * (int(batch.group.max()) + 1) + batch.group
    members, predicted = np.bincount(block), np.bincount(block[labelled])
    return members[block[labelled]], predicted[block[labelled]]


def parse_block_length(text: str) -> tuple[int, int] | None:
    """Read ``--block-length``: the fewest and the most tokens of a block; None if it is not one of `LENGTHS`."""
    if text in ("target", "random"):
        return (WHOLE, WHOLE) if text == "target" else (1, LONGEST)
    number = text.removeprefix("random:")
    if not (number.isdecimal() and 0 < int(number) < WHOLE):
        return None
    return (1 if number != text else int(number), int(number))


def draw_lengths(
    needed: np.ndarray, room: np.ndarray, bounds: tuple[int, int], block_prob: np.ndarray | float, draws: Draws
) -> Ragged:
    """Draw lengths of blocks until there are enough tokens, for each of B texts.

    Args:
        needed: tokens (B,).
        room: tokens (B,) that all blocks of a text may have at most, no fewer than are needed; the last block is cut.
        bounds: fewest and most tokens of a block; all lengths between them are equally likely.
        block_prob: probability, of each text (B,) or all, that a length is drawn so; otherwise it is 1.
        draws: random numbers for these texts.

    Returns:
        The lengths of the blocks, a row for a text.
    """
    drawn = Ragged.of_lengths(needed)  # as many as there may be at most
    least, greatest = bounds
    of_block = least + draws.integers(greatest - least + 1, drawn)
    probability = np.broadcast_to(block_prob, needed.shape)[drawn.row]
    values = np.where(draws.random(drawn) < probability, of_block, 1)
    totals = np.cumsum(values)
    starts = np.cumsum(needed) - needed
    before = totals - values - np.concatenate([[0], totals])[starts][drawn.row]
    kept = before < needed[drawn.row]
    fitting = np.minimum(values, room[drawn.row] - before)
    return drawn.with_values(fitting).only(kept)


def draw_masked(lengths: Ragged, schedule: str, draws: Draws) -> np.ndarray:
    """Draw which tokens of blocks are masked: at least one of each block.

    Args:
        lengths: of the blocks, a row for an example.
        schedule: one of `SCHEDULES`.
        draws: random numbers for these examples.

    Returns:
        Boolean (N,), block after block. N: tokens of all blocks.
    """
    share = SCHEDULES[schedule].share(1 - draws.random(lengths))
    rank = Ragged(draws.random(members_of(lengths)), lengths.values).rank()
    # What is above a whole number by a rounding error is that number.
    count = np.ceil(share * lengths.values - 1e-9)
    masked: np.ndarray = rank < np.repeat(np.maximum(count, 1), lengths.values)
    return masked


def members_of(lengths: Ragged) -> Ragged:
    """Return rows with a value for each token of the blocks of an example, from the lengths of these."""
    return Ragged.of_lengths(np.bincount(lengths.row, lengths.values, len(lengths.lengths)).astype(np.int64))


def blocks(
    source: Ragged, target: Ragged, form: SequenceForm, corruption: Corruption, draws: Draws, *, cut: Blocks
) -> PackedExamples:
    """Fine-tuning in blocks. Arguments as for :func:`s2sft_fairseq.objectives.finetuning.causal`, and

    Args:
        cut: how targets are cut into blocks, and how these are masked.
    """
    context, content, placeholders = pseudo_masked(source, target, form, corruption, draws)
    lengths = cut.draw_lengths(target.lengths, form.max_target, draws)
    is_masked = draw_masked(lengths, cut.schedule, draws)
    filled = members_of(lengths)
    is_target = filled.place < target.lengths[filled.row]
    tokens = np.full(len(is_target), form.sep)
    symbols = np.full(len(is_target), form.placeholder)
    tokens[is_target], symbols[is_target] = target.values, placeholders.token
    block = Ragged.of_lengths(lengths.values)
    step = filled.place - block.place + 1  # of the first token of the block
    if cut.whole(form.max_target):
        nothing = Ragged(content.token[:0], np.zeros_like(content.lengths))
        content = Section.of(nothing, first_position=0, segment=form.target_segment, label=form.pad)
    return (
        context,
        content,
        Section.of(
            filled.with_values(np.where(is_masked, symbols, tokens)),
            first_position=source.lengths,
            segment=form.placeholder_segment,
            step=step,
            group=step,
            label=np.where(is_masked, tokens, form.pad),
        ),
    )
