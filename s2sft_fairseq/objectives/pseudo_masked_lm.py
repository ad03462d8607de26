"""The pseudo-masked language model, the pre-training objective of UniLMv2 (section 3 of the paper, Figures 3 to 5).

The context of a text has ``[M]`` in place of its masked tokens. The masked tokens themselves follow, each known at its
factorization step, and then a placeholder ``[P]`` for each; both have the positions of the masked tokens. In one pass,
the ``[M]`` predict all masked tokens at once (autoencoding, AE), and the ``[P]`` of a factorization step predict its
tokens from the context and the earlier steps (partially autoregressive, PAR).

Blockwise masking and factorization (Algorithm 1) chooses the masked tokens and their order. The algorithm draws a place
and a length until enough tokens are masked, and draws again if a token is masked already, so blocks are less frequent
than it says. Here the lengths are drawn first; then all placements and all orders are equally likely, so that lengths
and order have the distributions that the paper gives.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from s2sft_fairseq.objectives.blocks import draw_lengths, draw_masked
from s2sft_fairseq.objectives.finetuning import NO_CORRUPTION, Corruption, context_section
from s2sft_fairseq.objectives.objective import Flow
from s2sft_fairseq.objectives.packing import PackedExamples, Section
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm


@dataclass(frozen=True)
class BlockwiseMasking:
    """How tokens are masked. The defaults are those of the paper."""

    ratio: float = 0.15
    """Smallest share of masked tokens in a text. It may be exceeded: the last factorization step is not cut."""
    block_prob: float = 0.4
    """Probability that a factorization step is a block of several tokens, and not one token."""
    block_lengths: tuple[int, int] = (2, 6)
    """Minimum and maximum length of a block, drawn uniformly."""

    def problems(self, block_lengths: str | None) -> list[str]:
        """Return error messages for these values; ``block_lengths`` is the option's text, if given, for a message."""
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
        """Return the fewest tokens that are masked, from the lengths of the texts (B,)."""
        return np.ceil(self.ratio * lengths).astype(np.int64)

    def most_masked(self, lengths: np.ndarray) -> np.ndarray:
        """Return the most tokens that are masked, from the lengths of the texts (B,)."""
        longest = self.block_lengths[1] if self.block_prob else 1
        most: np.ndarray = np.minimum(self.least_masked(lengths) + longest - 1, lengths)
        return most

    def draw(self, text: Ragged, draws: Draws) -> np.ndarray:
        """Draw the masked tokens and their factorization order.

        Args:
            text: the tokens that may be masked, at least one of each text.
            draws: random numbers for these texts.

        Returns:
            The factorization step of each masked token, from 1, and 0 for other tokens; int64 (N,).
        """
        # In a short text the last block may be cut to fit.
        needed = self.least_masked(text.lengths)
        blocks = draw_lengths(needed, text.lengths, self.block_lengths, self.block_prob, draws)
        masked = np.bincount(blocks.row, weights=blocks.values, minlength=len(text.lengths)).astype(np.int64)
        # A text is a row of units, each of which is a block or an unmasked token.
        units = Ragged.of_lengths(text.lengths - masked + blocks.lengths)
        rank = units.with_values(draws.random(units)).rank()
        is_block = rank < blocks.lengths[units.row]
        starts = np.cumsum(blocks.lengths) - blocks.lengths
        tokens = np.ones_like(rank)
        tokens[is_block] = blocks.values[(starts[units.row] + rank)[is_block]]
        return np.repeat(np.where(is_block, rank + 1, 0), tokens)


REPLACEMENT = replace(NO_CORRUPTION, random_prob=0.1, keep_prob=0.1)
"""How masked tokens are replaced in the paper (section 4.1): 80 % by a mask, 10 % by random tokens, 10 % stay."""


class LanguageModel(NamedTuple):
    """A choice of flows of the pseudo-masked language model to train (Table 6 of the paper)."""

    flows: tuple[Flow, ...]
    token_by_token: bool = False
    """Every masked token has its own factorization step, from left to right within a block (AR)."""
    partly_masked: bool = False
    """A random number of the [P] of each factorization step hold their tokens, as in fine-tuning in blocks."""

    @property
    def autoencodes(self) -> bool:
        """Whether tokens are predicted at [M]."""
        return self.flows[0].section == 0

    @property
    def has_placeholders(self) -> bool:
        """Whether there are [P], at which tokens are predicted."""
        return self.flows[-1].section == 2


_AE, _AR, _PAR, _BLOCKS = Flow("ae", 0), Flow("ar", 2), Flow("par", 2), Flow("blocks", 2)

LANGUAGE_MODELS: dict[str, LanguageModel] = {
    "ae": LanguageModel((_AE,)),
    "ar": LanguageModel((_AR,), token_by_token=True),
    "par": LanguageModel((_PAR,)),
    "ae+ar": LanguageModel((_AE, _AR), token_by_token=True),
    "ae+par": LanguageModel((_AE, _PAR)),
    "blocks": LanguageModel((_BLOCKS,), partly_masked=True),
    "ae+blocks": LanguageModel((_AE, _BLOCKS), partly_masked=True),
}


def pseudo_masked_lm(
    text: Ragged,
    language_model: LanguageModel,
    masking: BlockwiseMasking,
    form: SequenceForm,
    corruption: Corruption,
    draws: Draws,
    *,
    mask: int,
) -> PackedExamples:
    """Return the context and, if there are placeholders, the masked tokens and their placeholders.

    In place of ``[M]`` and ``[P]`` there may be the masked token itself or a random token (section 4.1: 80/10/10).

    Args:
        text: laid-out texts, ``[CLS] S1 [SEP] S2 [SEP]``; a block may continue from S1 to S2.
        language_model: the flows to train.
        masking: how tokens are masked.
        form: special symbols and segments.
        corruption: how masked tokens are replaced.
        draws: random numbers for these texts.
        mask: the id of ``[M]``; the id of ``[P]`` is the placeholder of `form`.
    """
    is_word = (text.values != form.cls) & (text.values != form.sep)
    words = text.only(is_word)
    step = np.zeros_like(text.values)
    step[is_word] = masking.draw(words, draws)
    is_masked = step > 0
    drawn = corruption.draw(text, replace(form, placeholder=mask), draws)
    replaced = np.where(is_masked, drawn, text.values)
    context = context_section(text.with_values(replaced), form)._replace(segment=form.segment_column(text))
    if language_model.autoencodes:
        context = context._replace(label=np.where(is_masked, text.values, form.pad))
    if not language_model.has_placeholders:
        return (context,)
    masked = text.only(is_masked)
    step = step[is_masked]
    if language_model.token_by_token:
        step = masked.with_values(step).rank() + 1
    original = Section(
        token=masked.values,
        position=context.position[is_masked],
        segment=context.segment[is_masked],
        step=step,
        group=np.zeros_like(step),
        label=np.full_like(step, form.pad),
        lengths=masked.lengths,
    )
    tokens = replaced[is_masked]
    tokens = np.where(tokens == mask, form.placeholder, tokens)
    placeholder = original._replace(token=tokens, group=step, label=masked.values)
    if language_model.partly_masked:
        predicted = draw_masked(_factorization_steps(masked.with_values(step)), "uniform", draws)
        placeholder = placeholder._replace(
            token=np.where(predicted, tokens, masked.values), label=np.where(predicted, masked.values, form.pad)
        )
    return context, original, placeholder


def _factorization_steps(step: Ragged) -> Ragged:
    """Return the number of tokens of each factorization step, in text order, from the steps of masked tokens."""
    is_first = (step.place == 0) | (step.values != np.roll(step.values, 1))
    starts = np.flatnonzero(is_first)
    return Ragged(np.diff(np.append(starts, len(is_first))), np.bincount(step.row[starts], minlength=len(step.lengths)))
