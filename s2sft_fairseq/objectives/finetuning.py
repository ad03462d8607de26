"""The three fine-tuning methods of s2s-ft (section 2 of the paper, Figures 1 and 2) in the packed format."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from s2sft_fairseq.objectives.corruption import NO_CORRUPTION, Corruption
from s2sft_fairseq.objectives.packing import Block, PackedExample
from s2sft_fairseq.objectives.sequence_form import SequenceForm

Objective = Callable[[np.ndarray, np.ndarray, SequenceForm, Corruption, np.random.Generator], PackedExample]


def context_block(source: np.ndarray, form: SequenceForm) -> Block:
    """Return a laid-out source (n,) as what is given from the start."""
    return Block.of(source, first_position=0, segment=form.source_segments(source), label=form.pad)


def _context(tokens: np.ndarray, form: SequenceForm, corruption: Corruption, rng: np.random.Generator) -> Block:
    clean = form.source(tokens)
    # The segments are those of the clean source: a random token may be another [SEP].
    return context_block(clean, form)._replace(token=corruption.corrupt_source(clean, form, rng))


def _steps(target: np.ndarray) -> np.ndarray:
    """Return the factorization steps 1..m of a target (m,) that is predicted from left to right."""
    return np.arange(1, len(target) + 1, dtype=np.int64)


def causal(
    source: np.ndarray, target: np.ndarray, form: SequenceForm, corruption: Corruption, rng: np.random.Generator
) -> PackedExample:
    """Causal fine-tuning (section 2.1): each target token predicts the next one, the first stands on ``[SEP]``.

    Args:
        source: ids (n,), without special symbols but for the ``[SEP]`` between fields.
        target: ids without special symbols (m,).
    """
    context = _context(source, form, corruption, rng)
    label = form.target(target)
    content = np.concatenate([[form.sep], corruption.corrupt(label[:-1], corruption.target_mask_prob, form, rng)])
    return (
        context,
        Block.of(
            content,
            first_position=len(context.token),
            segment=form.target_segment,
            step=_steps(label),
            label=label,
        ),
    )


def masked(
    source: np.ndarray, target: np.ndarray, form: SequenceForm, corruption: Corruption, rng: np.random.Generator
) -> PackedExample:
    """Masked fine-tuning (section 2.2): some target tokens, ``[SEP]`` among them, are masked and predicted in place.

    At least one is, so that every example teaches something. Arguments as for :func:`causal`.
    """
    context = _context(source, form, corruption, rng)
    clean = form.target(target)
    chosen = _choose_masked(len(clean), corruption, rng)
    return (
        context,
        Block.of(
            np.where(chosen, corruption.draw(clean, form, rng), clean),
            first_position=len(context.token),
            segment=form.target_segment,
            step=_steps(clean),
            label=np.where(chosen, clean, form.pad),
        ),
    )


def _choose_masked(length: int, corruption: Corruption, rng: np.random.Generator) -> np.ndarray:
    """Choose the positions to mask as a boolean array (length,)."""
    order = rng.permutation(length)
    if corruption.exact_count:
        count = int(corruption.target_mask_prob * length)
    else:
        count = rng.binomial(length, corruption.target_mask_prob)
    if corruption.max_masked_tokens:
        count = min(count, corruption.max_masked_tokens)
    return order < max(1, count)


def pseudo_masked(
    source: np.ndarray, target: np.ndarray, form: SequenceForm, corruption: Corruption, rng: np.random.Generator
) -> PackedExample:
    """Pseudo-masked fine-tuning (section 2.3): every target token is predicted at a placeholder [P] of its own.

    The program of s2s-ft draws each placeholder through the 80/10/10 rule, and what it writes over a target token is
    the very token that was drawn for its placeholder; the paper has [P] throughout. Arguments as for :func:`causal`.
    """
    context = _context(source, form, corruption, rng)
    clean = form.target(target)
    placeholder = corruption.draw(clean, form, rng)
    corrupted = rng.random(len(clean)) < corruption.target_mask_prob
    steps = _steps(clean)
    position = len(context.token)
    return (
        context,
        Block.of(
            np.where(corrupted, placeholder, clean),
            first_position=position,
            segment=form.target_segment,
            step=steps,
            label=form.pad,
        ),
        Block.of(
            placeholder,
            first_position=position,
            segment=form.target_segment,
            step=steps,
            group=steps,
            label=clean,
        ),
    )


def reference(source: np.ndarray, target: np.ndarray, form: SequenceForm) -> PackedExample:
    """Return the pass that gives each target token the probability that decoding gives it: nothing is corrupted.

    Masked and pseudo-masked models decode alike, token after token at a placeholder (section 2.4).
    """
    objective = causal if form.shifted else pseudo_masked
    return objective(source, target, form, NO_CORRUPTION, np.random.default_rng(0))


class Method(NamedTuple):
    """A fine-tuning method as the task needs to know it."""

    pack: Objective
    shifted: bool
    """The next token is read at the last one (causal), not at a placeholder."""
    positions_per_target: int
    """Positions of the packed sequence that one target token takes."""


METHODS: dict[str, Method] = {
    "causal": Method(causal, shifted=True, positions_per_target=1),
    "masked": Method(masked, shifted=False, positions_per_target=1),
    "pseudo_masked": Method(pseudo_masked, shifted=False, positions_per_target=2),
}
