"""The three fine-tuning methods of s2s-ft (section 2 of the paper, Figures 1 and 2) in the packed format.

An objective is a function from the laid-out sources and targets of a batch to their blocks. It treats all examples at
once: ``Ragged`` rows of tokens, a row for an example, become columns of a `Block`. What it draws for an example does
not depend on the others.
"""

from collections.abc import Callable

import numpy as np

from s2sft_fairseq.objectives.corruption import Corruption
from s2sft_fairseq.objectives.draws import Draws
from s2sft_fairseq.objectives.packing import Block, PackedExamples
from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm

Pack = Callable[..., PackedExamples]
"""An objective: the arguments are those of `causal`; where it takes spans, ``spans`` too."""
SpanSearch = Callable[[Ragged], np.ndarray]
"""From laid-out targets to the place in its target of the first token of each token's span (N,)."""


def context_block(source: Ragged, form: SequenceForm) -> Block:
    """Return laid-out sources as what is given from the start."""
    return Block.of(source, first_position=0, segment=form.segment_column(source), label=form.pad)


def corrupted_context(source: Ragged, form: SequenceForm, corruption: Corruption, draws: Draws) -> Block:
    """Return laid-out sources, corrupted, as what is given from the start."""
    # The segments are those of the clean source: a random token may be another [SEP].
    return context_block(source, form)._replace(token=corruption.corrupt_source(source, form, draws))


def _steps(target: Ragged) -> np.ndarray:
    """Return the factorization steps (N,), 1..m of each target, which is predicted from left to right."""
    return target.place + 1


def causal(source: Ragged, target: Ragged, form: SequenceForm, corruption: Corruption, draws: Draws) -> PackedExamples:
    """Causal fine-tuning (section 2.1): each target token predicts the next one, the first stands on ``[SEP]``.

    Args:
        source: sources as `SequenceForm.source` lays them out, ``[CLS] x``, or ``[CLS] x [SEP]`` for other methods.
        target: targets as `SequenceForm.target` lays them out, ``y [SEP]``.
        form: special symbols and segments.
        corruption: how likely tokens are corrupted.
        draws: random numbers for these examples.
    """
    context = corrupted_context(source, form, corruption, draws)
    # One token on: the [SEP] that ends a target begins the next one, and the last one's the first.
    shifted = target.with_values(np.roll(target.values, 1))
    corrupted = corruption.corrupt(shifted, corruption.target_mask_prob, form, draws)
    return (
        context,
        Block.of(
            target.with_values(np.where(target.place == 0, form.sep, corrupted)),
            first_position=source.lengths,
            segment=form.target_segment,
            step=_steps(target),
            label=target.values,
        ),
    )


def masked(source: Ragged, target: Ragged, form: SequenceForm, corruption: Corruption, draws: Draws) -> PackedExamples:
    """Masked fine-tuning (section 2.2): some target tokens, ``[SEP]`` among them, are masked and predicted in place.

    At least one is, so that every example teaches something. Arguments as for :func:`causal`.
    """
    context = corrupted_context(source, form, corruption, draws)
    chosen = _choose_masked(target, corruption, draws)
    return (
        context,
        Block.of(
            target.with_values(np.where(chosen, corruption.draw(target, form, draws), target.values)),
            first_position=source.lengths,
            segment=form.target_segment,
            step=_steps(target),
            label=np.where(chosen, target.values, form.pad),
        ),
    )


def _choose_masked(target: Ragged, corruption: Corruption, draws: Draws) -> np.ndarray:
    """Choose the tokens to mask, boolean (N,): those with the smallest random numbers of their target."""
    chance = target.with_values(draws.random(target))
    if corruption.exact_count:
        count = (corruption.target_mask_prob * target.lengths).astype(np.int64)
    else:
        by_chance = chance.row[chance.values < corruption.target_mask_prob]
        count = np.bincount(by_chance, minlength=len(target.lengths))
    if corruption.max_masked_tokens:
        count = np.minimum(count, corruption.max_masked_tokens)
    return chance.rank() < np.maximum(1, count)[target.row]


def pseudo_masked(
    source: Ragged,
    target: Ragged,
    form: SequenceForm,
    corruption: Corruption,
    draws: Draws,
    *,
    spans: SpanSearch | None = None,
) -> PackedExamples:
    """Pseudo-masked fine-tuning (section 2.3): every target token is predicted at a placeholder [P] of its own.

    The program of s2s-ft draws each placeholder through the 80/10/10 rule, and what it writes over a target token is
    the very token that was drawn for its placeholder; the paper has [P] throughout. Arguments as for :func:`causal`,
    and

    Args:
        spans: the tokens of a span are predicted from what stands before the span, as in UniLMv2, whose placeholders
            of a span see each other; None: every token is a span.
    """
    context = corrupted_context(source, form, corruption, draws)
    placeholder = corruption.draw(target, form, draws)
    corrupted = draws.random(target) < corruption.target_mask_prob
    steps = _steps(target)
    predicted = steps if spans is None else spans(target) + 1
    return (
        context,
        Block.of(
            target.with_values(np.where(corrupted, placeholder, target.values)),
            first_position=source.lengths,
            segment=form.target_segment,
            step=steps,
            label=form.pad,
        ),
        Block.of(
            target.with_values(placeholder),
            first_position=source.lengths,
            segment=form.placeholder_segment,
            step=predicted,
            group=predicted,
            label=target.values,
        ),
    )
