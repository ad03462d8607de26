"""Fine-tuning in blocks. Pseudo-masked fine-tuning has blocks of one token; masked diffusion has one block per target.

A target is cut into consecutive blocks. The placeholders of a block see each other, the source, and the target before
the block. Some placeholders hold the token that they stand for. The others hold the placeholder symbol and are
predicted, so that decoding can fill a block in any order, one or several tokens in a pass.

With one block per target this is the masked diffusion of MDLM (Sahoo et al., 2024), with shorter blocks the block
diffusion of BD3-LM (Arriola et al., 2025). There is one difference to BD3-LM: the content of a target sees itself from
left to right, independent of the blocks. So its keys and values are the same in all kinds of decoding.

A word flow may be trained beside the blocks: each target token also has a placeholder of its own, as in pseudo-masked
fine-tuning, so that every target teaches decoding token by token.

The last block is filled up with ``[SEP]`` after the first ``[SEP]``. These are predicted like other tokens, because in
decoding a block begins before the end of the text is known.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.finetuning import Corruption, pseudo_masked
from s2sft_fairseq.objectives.packing import PackedBatch, PackedExamples, Section
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm

LENGTHS = "a number from 1 on, random, random:N or target"
"""Values of ``--block-length``, for messages."""
LONGEST = 8
"""Default of the largest random length."""
WORD_WEIGHT = 0.7
"""Default weight of the word flow beside blocks of random length. With 0.5, models scored lower token by token."""
WHOLE = 1 << 31
"""A length that no target exceeds."""


class Schedule(NamedTuple):
    """The distribution of the masked share of a block."""

    share: Callable[[np.ndarray], np.ndarray]
    """Maps a uniform number u in (0, 1] to the masked share t in (0, 1]; increasing."""
    probability: Callable[[np.ndarray], np.ndarray] | None
    """Maps t to the probability of a share of at most t, the inverse function; None if there is no inverse."""


SCHEDULES: Mapping[str, Schedule] = {
    "uniform": Schedule(lambda u: u, lambda t: t),
    # Large shares are more frequent (MaskGIT, Chang et al., 2022).
    "cosine": Schedule(lambda u: np.sin(u * np.pi / 2), lambda t: np.arcsin(t) * 2 / np.pi),
    # Blocks are masked completely: only the first pass over a block is learned.
    "full": Schedule(np.ones_like, None),
}
WEIGHTS = ("even", "bound")


@dataclass(frozen=True)
class Blocks:
    """How targets are cut into blocks, and how the blocks are masked."""

    least: int = 1
    """Fewest tokens of a block."""
    greatest: int = LONGEST
    """Most tokens of a block; all lengths from ``least`` on are equally likely."""
    word_weight: float = 0.0
    """Weight of the word flow in the loss; 0: there is no word flow. In it each target token has a placeholder of its
    own, as in decoding token by token."""

    schedule: str = "uniform"
    """Name of the schedule of the masked share, one of `SCHEDULES`."""
    weight: str = "even"
    """Weights of the labels. ``even``: all 1; ``bound``: the expected loss of a block is an upper bound of the negative
    log-likelihood of its tokens."""

    @classmethod
    def of_options(
        cls, length: str | None, word_weight: float | None, schedule: str | None, weight: str | None = None
    ) -> "Blocks":
        """Return the blocks of a training from the values of its options; None is the default of an option.

        Args:
            length: the value of ``--block-length``.
            word_weight: the value of ``--word-flow-weight``.
            schedule: the value of ``--noise-schedule``.
            weight: the value of ``--block-loss-weight``.

        Raises:
            UserError: lists every option that is out of range.
        """
        bounds = parse_block_length("random" if length is None else length)
        least, greatest = bounds or (1, LONGEST)
        cut = cls(
            least,
            greatest,
            word_weight=WORD_WEIGHT * (least < greatest) if word_weight is None else word_weight,
            schedule=str(schedule or "uniform"),  # fairseq's choices are enums
            weight=str(weight or "even"),
        )
        problems = [] if bounds else [f"--block-length must be {LENGTHS}, but is {length!r:.40}"]
        if problems := [*problems, *cut.problems()]:
            raise UserError.of(problems)
        return cut

    def problems(self) -> list[str]:
        """Return error messages for these values."""
        found = []
        if not 0 <= self.word_weight < 1:
            found.append(f"--word-flow-weight must be at least 0 and below 1, but is {self.word_weight:g}")
        if self.weight == "bound" and SCHEDULES[self.schedule].probability is None:
            found.append(f"--block-loss-weight bound needs another --noise-schedule than {self.schedule}")
        return found

    def whole(self, max_target: int) -> bool:
        """Return whether every target is one block and there is no word flow, so that no placeholder sees content."""
        return self.least >= max_target and not self.word_weight

    def positions(self, lengths: np.ndarray, max_target: int) -> np.ndarray:
        """Return the most positions that content and placeholders take.

        Args:
            lengths: lengths of laid-out targets (B,).
            max_target: most positions of a target.
        """
        if self.whole(max_target):
            return np.full_like(lengths, max_target)
        is_fixed = self.least == self.greatest
        filled = -(-lengths // self.least) * self.least if is_fixed else lengths + self.greatest - 1
        others = lengths * (2 if self.word_weight else 1)
        positions: np.ndarray = others + np.minimum(filled, max_target)
        return positions

    def draw_lengths(self, lengths: np.ndarray, max_target: int, draws: Draws) -> Ragged:
        """Draw the lengths of the blocks of each target. The last block may extend beyond the end of the target.

        Args:
            lengths: lengths of laid-out targets (B,).
            max_target: most positions of all blocks of a target.
            draws: random numbers for these targets.
        """
        bounds = min(self.least, max_target), min(self.greatest, max_target)
        return draw_lengths(lengths, np.full_like(lengths, max_target), bounds, 1.0, draws)

    def weights(self, batch: PackedBatch, labelled: np.ndarray) -> tuple[np.ndarray | None, int]:
        """Return the weight of each label of a batch, and what the sum of their losses is divided by.

        With ``bound``: in a block of N tokens, k are predicted. With the uniform schedule all k are equally likely, and
        with the weight N / k the loss equals that of MDLM, whose integral over t becomes a sum over k (Nie et al.,
        2025, equation 6). With another schedule, N / k is divided by N times the probability of k. The divisor is the
        number of all tokens in blocks; with ``even`` it is the number of those that are predicted.

        With a word flow the loss is the weighted sum of the losses of both flows, each divided by its own number.

        Args:
            batch: the packed batch of T tokens.
            labelled: indices of the tokens that are predicted (L,).

        Returns:
            Weights (L,), or None where all are 1; and the divisor.
        """
        sections = batch.section()
        in_block = sections == sections.max()  # blocks are the last section
        of_block = in_block[labelled]
        weights, divisor = np.ones(len(labelled)), int(of_block.sum())
        if self.weight == "bound":
            members, predicted = _members(batch, labelled[of_block])
            of_share = SCHEDULES[self.schedule].probability
            assert of_share is not None, "problems() tells"
            probability = of_share(predicted / members) - of_share((predicted - 1) / members)
            weights[of_block] = 1 / (predicted * probability)
            divisor = int(in_block.sum())
        if self.word_weight:
            words = len(labelled) - int(of_block.sum())
            weights *= np.where(of_block, (1 - self.word_weight) * words / divisor, self.word_weight)
            divisor = words
        return (weights if self.word_weight or self.weight == "bound" else None), divisor


def _members(batch: PackedBatch, labelled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of tokens in the block of each label, and how many of them are predicted, both (L,)."""
    examples = np.repeat(np.arange(len(batch.lengths)), [sum(lengths) for lengths in batch.lengths])
    # Groups are numbered within an example.
    block = examples * (int(batch.group.max()) + 1) + batch.group
    members, predicted = np.bincount(block), np.bincount(block[labelled])
    return members[block[labelled]], predicted[block[labelled]]


def parse_block_length(text: str) -> tuple[int, int] | None:
    """Parse ``--block-length`` into the fewest and the most tokens of a block; None if the value is not allowed."""
    if text in ("target", "random"):
        return (WHOLE, WHOLE) if text == "target" else (1, LONGEST)
    number = text.removeprefix("random:")
    if not (number.isdecimal() and 0 < int(number) < WHOLE):
        return None
    return (1 if number != text else int(number), int(number))


def parse_range(text: str) -> tuple[int, int]:
    """Parse a range of lengths, such as ``2-6``; return (0, 0) for other text, which the objectives refuse."""
    least, _, greatest = text.partition("-")
    return (int(least), int(greatest)) if least.isdecimal() and greatest.isdecimal() else (0, 0)


def draw_lengths(
    needed: np.ndarray, room: np.ndarray, bounds: tuple[int, int], block_prob: float, draws: Draws
) -> Ragged:
    """Draw lengths of blocks for each of B texts until they have enough tokens.

    Args:
        needed: fewest tokens in all blocks of a text (B,).
        room: most tokens in all blocks of a text, at least ``needed`` (B,); the last block is cut to fit.
        bounds: fewest and most tokens of a block; all lengths between them are equally likely.
        block_prob: probability that a length is drawn from ``bounds``; otherwise it is 1.
        draws: random numbers for these texts.

    Returns:
        The lengths of the blocks, a row for each text.
    """
    drawn = Ragged.of_lengths(needed)  # the most blocks that a text may have
    least, greatest = bounds
    of_block = least + draws.integers(greatest - least + 1, drawn)
    values = np.where(draws.random(drawn) < block_prob, of_block, 1)
    totals = np.cumsum(values)
    starts = np.cumsum(needed) - needed
    before = totals - values - np.concatenate([[0], totals])[starts][drawn.row]
    kept = before < needed[drawn.row]
    fitting = np.minimum(values, room[drawn.row] - before)
    return drawn.with_values(fitting).only(kept)


def draw_masked(lengths: Ragged, schedule: str, draws: Draws) -> np.ndarray:
    """Draw which tokens of blocks are masked: at least one of each block.

    Args:
        lengths: lengths of the blocks, a row for each example.
        schedule: one of `SCHEDULES`.
        draws: random numbers for these examples.

    Returns:
        A mask, bool (N,), block after block. N: tokens of all blocks.
    """
    share = SCHEDULES[schedule].share(1 - draws.random(lengths))
    rank = Ragged(draws.random(members_of(lengths)), lengths.values).rank()
    # Ignore rounding errors just above an integer.
    count = np.ceil(share * lengths.values - 1e-9)
    masked: np.ndarray = rank < np.repeat(np.maximum(count, 1), lengths.values)
    return masked


def members_of(lengths: Ragged) -> Ragged:
    """Return a row for each example with a value for each token of its blocks, from the lengths of the blocks."""
    return Ragged.of_lengths(np.bincount(lengths.row, lengths.values, len(lengths.lengths)).astype(np.int64))


def blocks(
    source: Ragged, target: Ragged, form: SequenceForm, corruption: Corruption, draws: Draws, *, cut: Blocks
) -> PackedExamples:
    """Fine-tuning in blocks: some tokens of each block are masked and predicted.

    Args:
        source: as for :func:`s2sft_fairseq.objectives.finetuning.causal`.
        target: as for :func:`s2sft_fairseq.objectives.finetuning.causal`.
        form: as for :func:`s2sft_fairseq.objectives.finetuning.causal`.
        corruption: as for :func:`s2sft_fairseq.objectives.finetuning.causal`.
        draws: as for :func:`s2sft_fairseq.objectives.finetuning.causal`.
        cut: how targets are cut into blocks, and how the blocks are masked.
    """
    context, content, words = pseudo_masked(source, target, form, corruption, draws)
    lengths = cut.draw_lengths(target.lengths, form.max_target, draws)
    is_masked = draw_masked(lengths, cut.schedule, draws)
    filled = members_of(lengths)
    is_target = filled.place < target.lengths[filled.row]
    tokens = np.full(len(is_target), form.sep)
    symbols = np.full(len(is_target), form.placeholder)
    tokens[is_target], symbols[is_target] = target.values, words.token
    block = Ragged.of_lengths(lengths.values)
    step = filled.place - block.place + 1  # of the first token of the block
    if cut.whole(form.max_target):
        nothing = Ragged(content.token[:0], np.zeros_like(content.lengths))
        content = Section.of(nothing, first_position=0, segment=form.target_segment, label=form.pad)
    in_blocks = Section.of(
        filled.with_values(np.where(is_masked, symbols, tokens)),
        first_position=source.lengths,
        segment=form.placeholder_segment,
        step=step,
        # The groups of two flows must differ.
        group=step + target.lengths[filled.row] if cut.word_weight else step,
        label=np.where(is_masked, tokens, form.pad),
    )
    return (context, content, words, in_blocks) if cut.word_weight else (context, content, in_blocks)
