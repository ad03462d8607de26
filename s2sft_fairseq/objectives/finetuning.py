"""The three fine-tuning objectives of s2s-ft (section 2 of the paper, Figures 1 and 2) in the packed format.

An objective is a function from the laid-out sources and targets of a batch to their sections. It processes all examples
at once: ``Ragged`` rows of tokens, one for each example, become columns of a `Section`. A `Corruption` tells how tokens
are corrupted before the model sees them. The random numbers of an example do not depend on other examples.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from s2sft_fairseq.errors import as_option
from s2sft_fairseq.objectives.packing import PackedExamples, Section
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm

Pack = Callable[..., PackedExamples]
"""An objective. Its arguments are those of `causal`, and ``spans`` if the objective supports spans."""
SpanSearch = Callable[[Ragged], np.ndarray]
"""Maps laid-out targets to the index, in its target, of the first token of each token's span (N,)."""


@dataclass(frozen=True)
class Corruption:
    """Probabilities of the corruption, each in [0, 1]."""

    target_mask_prob: float
    """Probability that a target token is corrupted."""
    random_prob: float
    """Probability that a corrupted token becomes a random one, drawn uniformly from the whole vocabulary."""
    keep_prob: float
    """Probability that a corrupted token does not change; with the remaining probability it becomes the placeholder."""
    source_mask_prob: float = 0.0
    """Probability that a source token is corrupted, except special symbols."""
    exact_count: bool = False
    """Masked fine-tuning: corrupt exactly the share ``target_mask_prob`` of a target, not each token by chance."""
    max_masked_tokens: int = 0
    """Masked fine-tuning: most masked tokens of a target; 0 = no limit."""
    noise_prob: float = 0.0
    """Causal and infilling: probability that a content token of the target becomes noise (ERNIE-GEN, section 3.2)."""
    noise_symbol: int | None = None
    """The id of the noise; None: a random token, drawn uniformly from the whole vocabulary."""
    only_noised: bool = False
    """Infilling: only the tokens that become noise have labels (ERNIE-GEN, Table 7), at least one of each target."""

    def problems(self) -> list[str]:
        """Return error messages for these values."""
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
        if self.only_noised and not self.noise_prob:
            found.append("--loss-tokens noised needs --noise-prob above 0: without noise no token would be predicted")
        if self.max_masked_tokens < 0:
            found.append(f"--max-masked-tokens must not be negative, but is {self.max_masked_tokens}")
        return found

    def draw(self, tokens: Ragged, form: SequenceForm, draws: Draws) -> np.ndarray:
        """Corrupt all tokens (N,): keep each, or replace it by a random token or the placeholder."""
        chance = draws.random(tokens)
        random_tokens = draws.integers(form.vocab_size, tokens)
        replaced = np.where(chance < self.keep_prob + self.random_prob, random_tokens, form.placeholder)
        return np.where(chance < self.keep_prob, tokens.values, replaced)

    def corrupt(self, tokens: Ragged, probability: float, form: SequenceForm, draws: Draws) -> np.ndarray:
        """Corrupt each token (N,) with the given probability."""
        if probability <= 0:
            return tokens.values
        return np.where(draws.random(tokens) < probability, self.draw(tokens, form, draws), tokens.values)

    def add_noise(self, tokens: Ragged, form: SequenceForm, draws: Draws) -> tuple[np.ndarray, np.ndarray]:
        """Replace each token by noise with the probability ``noise_prob``.

        A random token may be a special symbol or the same as the replaced token, as in ERNIE-GEN's program.

        Returns:
            The tokens (N,), and which of them noise replaces, bool (N,).
        """
        if self.noise_prob <= 0:
            return tokens.values, np.zeros(len(tokens.values), dtype=bool)
        noise = draws.integers(form.vocab_size, tokens) if self.noise_symbol is None else self.noise_symbol
        chance = tokens.with_values(draws.random(tokens))
        chosen = chance.values < self.noise_prob
        if self.only_noised:
            chosen = chosen | (chance.rank() == 0)
        return np.where(chosen, noise, tokens.values), chosen

    def corrupt_source(self, source: Ragged, form: SequenceForm, draws: Draws) -> np.ndarray:
        """Corrupt laid-out sources (N,), except their special symbols."""
        special = (source.values == form.cls) | (source.values == form.sep)
        return np.where(special, source.values, self.corrupt(source, self.source_mask_prob, form, draws))


NO_CORRUPTION = Corruption(target_mask_prob=0.0, random_prob=0.0, keep_prob=0.0)


def context_section(source: Ragged, form: SequenceForm) -> Section:
    """Return laid-out sources as the context."""
    return Section.of(source, first_position=0, segment=form.segment_column(source), label=form.pad)


def corrupted_context(source: Ragged, form: SequenceForm, corruption: Corruption, draws: Draws) -> Section:
    """Return corrupted laid-out sources as the context."""
    # Segments come from the clean source: a random token may be another [SEP].
    return context_section(source, form)._replace(token=corruption.corrupt_source(source, form, draws))


def _steps(target: Ragged) -> np.ndarray:
    """Return the factorization steps (N,) of prediction from left to right, 1..m in each target."""
    return target.place + 1


def causal(
    source: Ragged,
    target: Ragged,
    form: SequenceForm,
    corruption: Corruption,
    draws: Draws,
    *,
    predicts_sources: bool = False,
) -> PackedExamples:
    """Causal fine-tuning (section 2.1): each target token predicts the next one, and ``[SEP]`` predicts the first.

    The content may have ERNIE-GEN's noise (its "typical generation", Table 8), except for the ``[SEP]`` it begins with.

    A language model, whose sources are read from left to right, can predict the source too: each source token predicts
    the next one, and the last predicts the ``[SEP]`` that the content begins with.

    Args:
        source: sources as `SequenceForm.source` lays them out, ``[CLS] x``, or ``[CLS] x [SEP]`` for other objectives.
        target: targets as `SequenceForm.target` lays them out, ``y [SEP]``.
        form: special symbols and segments.
        corruption: the probabilities of corruption.
        draws: random numbers for these examples.
        predicts_sources: whether source tokens have labels.
    """
    context = corrupted_context(source, form, corruption, draws)
    if predicts_sources:
        context = context._replace(label=_next_tokens(source, form))
    # Shift by one token: [SEP] at the beginning of a target replaces the [SEP] at its end.
    shifted = target.with_values(np.roll(target.values, 1))
    corrupted = corruption.corrupt(shifted, corruption.target_mask_prob, form, draws)
    noised, _ = corruption.add_noise(target.with_values(corrupted), form, draws)
    return (
        context,
        Section.of(
            target.with_values(np.where(target.place == 0, form.sep, noised)),
            first_position=source.lengths,
            segment=form.target_segment,
            step=_steps(target),
            label=target.values,
        ),
    )


def _next_tokens(source: Ragged, form: SequenceForm) -> np.ndarray:
    """Return the clean token that follows each token of laid-out sources (N,): after the last one, ``[SEP]``."""
    is_last = source.place == source.lengths[source.row] - 1
    return np.where(is_last, form.sep, np.roll(source.values, -1))


def masked(source: Ragged, target: Ragged, form: SequenceForm, corruption: Corruption, draws: Draws) -> PackedExamples:
    """Masked fine-tuning (section 2.2): some target tokens, possibly ``[SEP]``, are masked and predicted in place.

    At least one token of each target is masked, so that every example contributes to the loss. The arguments are those
    of :func:`causal`.
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
    """Choose the tokens to mask, bool (N,): those with the smallest random numbers in each target."""
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
    """Pseudo-masked fine-tuning (section 2.3): every target token is predicted at its own placeholder [P].

    The program of s2s-ft applies the 80/10/10 rule to each placeholder, and replaces a corrupted target token by the
    token drawn for its placeholder. In the paper all placeholders are [P].

    Args:
        source: as for :func:`causal`.
        target: as for :func:`causal`.
        form: as for :func:`causal`.
        corruption: as for :func:`causal`.
        draws: as for :func:`causal`.
        spans: finds spans, whose tokens are predicted from the content before the span. As in UniLMv2, the placeholders
            of a span see each other. None: every token is a span.
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
