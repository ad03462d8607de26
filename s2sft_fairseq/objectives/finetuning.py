"""The three fine-tuning methods of s2s-ft (section 2 of the paper, Figures 1 and 2) in the packed format.

An objective is a function from the laid-out sources and targets of a batch to their sections. It treats all examples at
once: ``Ragged`` rows of tokens, a row for an example, become columns of a `Section`. A `Corruption` says how tokens are
corrupted before the model sees them; what is drawn for an example does not depend on the others.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from s2sft_fairseq.errors import as_option
from s2sft_fairseq.objectives.packing import PackedExamples, Section
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm

Pack = Callable[..., PackedExamples]
"""An objective: the arguments are those of `causal`; where it takes spans, ``spans`` too."""
SpanSearch = Callable[[Ragged], np.ndarray]
"""From laid-out targets to the place in its target of the first token of each token's span (N,)."""


@dataclass(frozen=True)
class Corruption:
    """Probabilities of the corruption, each in [0, 1]."""

    target_mask_prob: float
    """Probability that a target token is corrupted."""
    random_prob: float
    """Probability that a corrupted token becomes a random one, drawn uniformly from the whole vocabulary."""
    keep_prob: float
    """Probability that a corrupted token stays as it is; what is left of 1 becomes the placeholder."""
    source_mask_prob: float = 0.0
    """Probability that a source token, special symbols apart, is corrupted."""
    exact_count: bool = False
    """Masked fine-tuning: corrupt exactly ``target_mask_prob`` of the target, in place of each token by chance."""
    max_masked_tokens: int = 0
    """Masked fine-tuning: at most so many masked tokens in one target; 0 = no limit."""
    noise_prob: float = 0.0
    """Infilling: probability that a target token, as content, is replaced by noise (ERNIE-GEN, section 3.2)."""
    noise_symbol: int | None = None
    """What it is replaced by; None: a random token, drawn uniformly from the whole vocabulary."""

    def problems(self) -> list[str]:
        """What is wrong with these values, a sentence each."""
        found = [
            f"{as_option(name)} must be between 0 and 1, but is {value:g}"
            for name in ("target_mask_prob", "random_prob", "keep_prob", "source_mask_prob", "noise_prob")
            if not 0 <= (value := getattr(self, name)) <= 1
        ]
        if not found and self.random_prob + self.keep_prob > 1:
            found.append(
                f"--random-prob and --keep-prob must add up to 1 at most, but add up to "
                f"{self.random_prob + self.keep_prob:g}"
            )
        if self.max_masked_tokens < 0:
            found.append(f"--max-masked-tokens must not be negative, but is {self.max_masked_tokens}")
        return found

    def draw(self, tokens: Ragged, form: SequenceForm, draws: Draws) -> np.ndarray:
        """Corrupt every one of the tokens (N,): keep it, or replace it by a random token or by the placeholder."""
        chance = draws.random(tokens)
        random_tokens = draws.integers(form.vocab_size, tokens)
        replaced = np.where(chance < self.keep_prob + self.random_prob, random_tokens, form.placeholder)
        return np.where(chance < self.keep_prob, tokens.values, replaced)

    def corrupt(self, tokens: Ragged, probability: float, form: SequenceForm, draws: Draws) -> np.ndarray:
        """Corrupt each of the tokens (N,) with the given probability."""
        if probability <= 0:
            return tokens.values
        return np.where(draws.random(tokens) < probability, self.draw(tokens, form, draws), tokens.values)

    def add_noise(self, tokens: Ragged, form: SequenceForm, draws: Draws) -> np.ndarray:
        """Replace each of the tokens (N,) by noise with probability ``noise_prob``.

        A random token may be a special symbol, or the very token that it replaces, as in the program of ERNIE-GEN.
        """
        if self.noise_prob <= 0:
            return tokens.values
        noise = draws.integers(form.vocab_size, tokens) if self.noise_symbol is None else self.noise_symbol
        return np.where(draws.random(tokens) < self.noise_prob, noise, tokens.values)

    def corrupt_source(self, source: Ragged, form: SequenceForm, draws: Draws) -> np.ndarray:
        """Corrupt laid-out sources (N,), never their special symbols."""
        special = (source.values == form.cls) | (source.values == form.sep)
        return np.where(special, source.values, self.corrupt(source, self.source_mask_prob, form, draws))


NO_CORRUPTION = Corruption(target_mask_prob=0.0, random_prob=0.0, keep_prob=0.0)


def context_section(source: Ragged, form: SequenceForm) -> Section:
    """Return laid-out sources as what is given from the start."""
    return Section.of(source, first_position=0, segment=form.segment_column(source), label=form.pad)


def corrupted_context(source: Ragged, form: SequenceForm, corruption: Corruption, draws: Draws) -> Section:
    """Return laid-out sources, corrupted, as what is given from the start."""
    # The segments are those of the clean source: a random token may be another [SEP].
    return context_section(source, form)._replace(token=corruption.corrupt_source(source, form, draws))


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
        Section.of(
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
        Section.of(
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
    chosen: np.ndarray = chance.rank() < np.maximum(1, count)[target.row]
    return chosen


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
        Section.of(
            target.with_values(np.where(corrupted, placeholder, target.values)),
            first_position=source.lengths,
            segment=form.target_segment,
            step=steps,
            label=form.pad,
        ),
        Section.of(
            target.with_values(placeholder),
            first_position=source.lengths,
            segment=form.placeholder_segment,
            step=predicted,
            group=predicted,
            label=target.values,
        ),
    )
