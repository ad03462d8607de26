"""The pseudo-masked language model: what UniLMv2 is pre-trained on (section 3 of the paper, Figures 3 to 5).

The context of a text holds ``[M]`` in place of its masked tokens; behind it stand the masked tokens themselves, each
known at its factorization step, and a placeholder ``[P]`` for each, all with the positions of the masked tokens. The
``[M]`` predict all masked tokens at once (autoencoding, AE); the ``[P]`` of one factorization step predict its tokens
from the context and the steps before it (partially autoregressive, PAR), in one and the same pass.

Which tokens are masked, and in which order, is blockwise masking and factorization (Algorithm 1). The algorithm draws a
place and a length until enough is masked, and draws again where something is masked already, so that blocks come less
often than it says. Here the lengths are drawn first; then every way to place them is equally likely, and every order,
so that lengths and order are what the paper says they are.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from s2sft_fairseq.objectives.blocks import draw_lengths, draw_masked
from s2sft_fairseq.objectives.finetuning import Corruption, context_section
from s2sft_fairseq.objectives.objective import Flow
from s2sft_fairseq.objectives.packing import PackedExamples, Section
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm


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
        most: np.ndarray = np.minimum(self.least_masked(lengths) + longest - 1, lengths)
        return most

    def draw(self, text: Ragged, draws: Draws) -> np.ndarray:
        """Draw the masked tokens and their factorization order.

        Args:
            text: what may be masked, at least one token of each text.
            draws: random numbers for these texts.

        Returns:
            The factorization step of each token, from 1, and 0 for those that are not masked; int64 (N,).
        """
        # A short text may have no room for the whole of the last one.
        needed = self.least_masked(text.lengths)
        blocks = draw_lengths(needed, text.lengths, self.block_lengths, self.block_prob, draws)
        masked = np.bincount(blocks.row, weights=blocks.values, minlength=len(text.lengths)).astype(np.int64)
        # A text is a row of units, each a block or a token that stays.
        units = Ragged.of_lengths(text.lengths - masked + blocks.lengths)
        rank = units.with_values(draws.random(units)).rank()
        is_block = rank < blocks.lengths[units.row]
        starts = np.cumsum(blocks.lengths) - blocks.lengths
        tokens = np.ones_like(rank)
        tokens[is_block] = blocks.values[(starts[units.row] + rank)[is_block]]
        return np.repeat(np.where(is_block, rank + 1, 0), tokens)


class LanguageModel(NamedTuple):
    """What of the pseudo-masked language model is trained (Table 6 of the paper)."""

    flows: tuple[Flow, ...]
    token_by_token: bool = False
    """Every masked token has a factorization step of its own, left to right in a block (AR)."""
    partly_masked: bool = False
    """A random number of the [P] of each factorization step hold their tokens, as in fine-tuning in blocks."""

    @property
    def autoencodes(self) -> bool:
        """Whether the [M] predict."""
        return self.flows[0].section == 0

    @property
    def has_placeholders(self) -> bool:
        """Whether there are [P], which predict."""
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
    """Return the context, and where there are placeholders the masked tokens and their placeholders.

    As a ``[M]``, and as a ``[P]``, a masked token may be itself or a random one (section 4.1: 80/10/10).

    Args:
        text: laid-out texts, ``[CLS] S1 [SEP] S2 [SEP]``, which belong together; a block may go on from S1 to S2.
        language_model: what is trained.
        masking: what is masked.
        form: special symbols and segments.
        corruption: how masked tokens are replaced.
        draws: random numbers for these texts.
        mask: the symbol at ``[M]``; that at ``[P]`` is the placeholder of `form`.
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
    """Return how many tokens each factorization step has, in the order of the text, from the steps of masked tokens."""
    is_first = (step.place == 0) | (step.values != np.roll(step.values, 1))
    starts = np.flatnonzero(is_first)
    return Ragged(np.diff(np.append(starts, len(is_first))), np.bincount(step.row[starts], minlength=len(step.lengths)))
