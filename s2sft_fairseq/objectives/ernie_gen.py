"""The objectives of ERNIE-GEN in the packed format: infilling generation, and the fragments that it is pre-trained on.

Infilling (section 3.3 of the paper, Figures 3 and 4): the content of a target begins with a ``[CLS]`` of its own and is
noised; it is the contextual flow. Every token is predicted at a placeholder ``[ATTN]``: once in the word-by-word flow,
from all content before it, and once in the span-by-span flow, from the content before its span. A placeholder sees
itself alone beside that content (equations 3 and 4), where the placeholders of a span see each other in UniLMv2.

Multi-granularity fragments (section 3.1, Figure 1e): for each text one of several distributions of lengths is drawn,
then fragments of such lengths, until a share of the text is spent. They are taken out of it and stitched together to
the target; what is left is the source.
"""

from dataclasses import dataclass

import numpy as np

from s2sft_fairseq.objectives.finetuning import Corruption, SpanSearch, causal, corrupted_context
from s2sft_fairseq.objectives.packing import PackedExamples, Section
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm


def infilling(
    source: Ragged,
    target: Ragged,
    form: SequenceForm,
    corruption: Corruption,
    draws: Draws,
    *,
    spans: SpanSearch | None = None,
) -> PackedExamples:
    """Return context, noised content and the placeholders of the word flow, then those of the span flow.

    The content ends before the final ``[SEP]``, which no placeholder sees.

    Args:
        source: laid-out sources, ``[CLS] x [SEP]``.
        target: laid-out targets, ``y [SEP]``.
        form: special symbols and segments.
        corruption: how likely tokens are noise.
        draws: random numbers for these examples.
        spans: finds the spans of the span flow; None: there is no such flow.
    """
    context = corrupted_context(source, form, corruption, draws)
    # One token on: the [SEP] that ends a target gives way to the [CLS] that begins it.
    content = target.with_values(np.roll(target.values, 1))
    noised = corruption.add_noise(content, form, draws)
    sections = (
        context,
        Section.of(
            target.with_values(np.where(target.place == 0, form.cls, noised)),
            first_position=source.lengths,
            segment=form.target_segment,
            step=target.place + 1,
            label=form.pad,
        ),
        _flow(source, target, form, first=target.place, number=0),
    )
    return sections if spans is None else (*sections, _flow(source, target, form, first=spans(target), number=1))


def _flow(source: Ragged, target: Ragged, form: SequenceForm, *, first: np.ndarray, number: int) -> Section:
    """Return a placeholder for each target token.

    Args:
        source, target, form: as for :func:`infilling`.
        first: the place of the first token of each token's span (N,).
        number: of the flow; the groups of two flows must differ.
    """
    return Section.of(
        target.with_values(np.full_like(target.values, form.placeholder)),
        first_position=source.lengths + 1,
        segment=form.placeholder_segment,
        # The content before it are the start symbol, of step 1, and so many tokens.
        step=first + 2,
        group=number * target.lengths[target.row] + target.place + 1,
        label=target.values,
    )


@dataclass(frozen=True)
class Fragments:
    """How fragments are drawn; the values are those of the paper."""

    budget: float = 0.25
    """Share of the tokens of a text that its fragments have together, gamma."""
    lengths: tuple[tuple[int, int], ...] = ((1, 4), (4, 32))
    """Least and greatest length of each uniform distribution."""
    shares: tuple[float, ...] = (0.4, 0.6)
    """Probability of each distribution."""

    def problems(self, lengths: str) -> list[str]:
        """What is wrong with these values, a sentence each; the lengths are quoted as they were given."""
        found = []
        # Of a text of n tokens n - budget + 1 places are left for as many fragments as the budget has tokens at most.
        if not 0 < self.budget <= 0.5:
            found.append(f"--fragment-budget must be above 0 and at most 0.5, but is {self.budget:g}")
        if any(not 1 <= least <= greatest for least, greatest in self.lengths):
            found.append(f"--fragment-lengths must be ranges of at least 1, such as 1-4, but is {lengths}")
        if len(self.shares) != len(self.lengths):
            found.append(
                f"--fragment-shares must be {len(self.lengths)} numbers, one for each range of --fragment-lengths, "
                f"but is {len(self.shares)}"
            )
        if any(share < 0 for share in self.shares) or abs(sum(self.shares) - 1) > 1e-6:
            found.append(
                f"--fragment-shares must not be negative and add up to 1, but is {', '.join(map(str, self.shares))}"
            )
        return found

    def target_length(self, length: np.ndarray) -> np.ndarray:
        """Return how many tokens the fragments of texts have, from the lengths of the texts (B,)."""
        return np.maximum(1, (self.budget * length + 0.5).astype(np.int64))

    def draw(self, text: Ragged, draws: Draws) -> np.ndarray:
        """Draw which tokens go to the target.

        The last fragment of a text is cut to what is left of the budget. Where fragments lie is uniform over all ways
        to place them with at least a token between two of them.

        Args:
            text: ids of the texts, at least two of each.
            draws: random numbers for these texts.

        Returns:
            Boolean (N,).
        """
        budgets = self.target_length(text.lengths)
        fragment = self._draw_lengths(budgets, draws)
        # A text without its fragments has a place before each token and one behind the last; each holds one at most.
        places = Ragged.of_lengths(text.lengths - budgets + 1)
        is_taken = places.with_values(draws.random(places)).rank() < fragment.lengths[places.row]
        # The fragments in order of their places: a random order, for the last one that was drawn is short.
        order = np.lexsort((draws.random(fragment), fragment.row))
        before = np.zeros(len(places.values), dtype=np.int64)
        before[is_taken] = fragment.values[order]
        # Place by place: the fragment that is there, then a token of the source, but for the last place of a text.
        is_last = places.place == places.lengths[places.row] - 1
        runs = np.stack([before, np.where(is_last, 0, 1)], axis=1).ravel()
        return np.repeat(np.tile([True, False], len(before)), runs)

    def _draw_lengths(self, budgets: np.ndarray, draws: Draws) -> Ragged:
        """Draw the lengths of the fragments of each text, which add up to its budget (B,)."""
        one_each = Ragged.of_lengths(np.ones_like(budgets))
        bounds = np.cumsum(self.shares)
        kind = np.minimum(np.searchsorted(bounds, draws.random(one_each), side="right"), len(bounds) - 1)
        least, greatest = np.array(self.lengths, dtype=np.int64)[kind].T
        # As many as there may be at most.
        drawn = Ragged.of_lengths(budgets)
        width = (greatest - least + 1)[drawn.row]
        lengths = least[drawn.row] + (draws.random(drawn) * width).astype(np.int64)
        totals = np.cumsum(lengths)
        starts = np.cumsum(budgets) - budgets
        of_text = totals - lengths - np.concatenate([[0], totals])[starts][drawn.row]  # before each fragment
        room = budgets[drawn.row] - of_text
        return drawn.with_values(np.minimum(lengths, room)).only(room > 0)


def split(text: Ragged, is_target: np.ndarray) -> tuple[Ragged, Ragged]:
    """Split texts into what is left and what was taken out, each in order.

    Args:
        text: ids of the texts.
        is_target: which of them are taken out (N,).
    """
    return text.only(~is_target), text.only(is_target)


def infilled_fragments(
    text: Ragged,
    fragments: Fragments,
    form: SequenceForm,
    corruption: Corruption,
    draws: Draws,
    *,
    spans: SpanSearch | None = None,
) -> PackedExamples:
    """Return what ERNIE-GEN is pre-trained on: infilling of the fragments of texts, from what is left of them.

    Args:
        text: ids of the texts, without special symbols.
        fragments: how they are drawn.
        form: special symbols and segments.
        corruption: how likely tokens are noise.
        draws: random numbers for these texts.
        spans: finds the spans of the span flow; None: there is no such flow.
    """
    source, target = split(text, fragments.draw(text, draws))
    laid_out = source.between([form.cls], [form.sep]), target.between([], [form.sep])
    return infilling(*laid_out, form, corruption, draws, spans=spans)


def causal_fragments(
    text: Ragged, fragments: Fragments, form: SequenceForm, corruption: Corruption, draws: Draws
) -> PackedExamples:
    """Return typical generation of the fragments (Table 8 of the paper): each token is predicted at the one before it.

    The layout is that of causal fine-tuning, ``[CLS] x`` and ``[SEP] y``; arguments as for :func:`infilled_fragments`.
    """
    source, target = split(text, fragments.draw(text, draws))
    laid_out = target.between([], [form.sep])
    sections = causal(source.between([form.cls], []), laid_out, form, corruption, draws)
    content = sections[1]
    noised = corruption.add_noise(laid_out.with_values(content.token), form, draws)
    return (sections[0], content._replace(token=np.where(laid_out.place == 0, form.sep, noised)))
