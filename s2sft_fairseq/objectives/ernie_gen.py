"""The objectives of ERNIE-GEN in the packed format: infilling generation, and fragments for pre-training.

Infilling (section 3.3 of the paper, Figures 3 and 4): the content of a target begins with its own ``[CLS]`` and gets
noise; it is the contextual flow. Every token is predicted at a placeholder ``[ATTN]``: once in the word-by-word flow,
from all content before it, and once in the span-by-span flow, from the content before its span. Besides that content a
placeholder sees only itself (equations 3 and 4), while in UniLMv2 the placeholders of a span see each other.

Multi-granularity fragments (section 3.1, Figure 1e): for each text, one of several distributions of lengths is drawn,
then fragments of such lengths, until they have a given share of the text. The fragments, concatenated, are the target;
the rest of the text is the source.
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
    """Return context, content with noise, the placeholders of the word flow, and those of the span flow.

    The content ends before the final ``[SEP]``, which no placeholder would see.

    Args:
        source: laid-out sources, ``[CLS] x [SEP]``.
        target: laid-out targets, ``y [SEP]``.
        form: special symbols and segments.
        corruption: the probability of noise, and whether only the tokens that it replaces are predicted. The final
            ``[SEP]`` counts as replaced as often as the others.
        draws: random numbers for these examples.
        spans: finds the spans of the span flow; None: no span flow.
    """
    context = corrupted_context(source, form, corruption, draws)
    # Shift by one token: [CLS] at the beginning of a target replaces the [SEP] at its end.
    content = target.with_values(np.roll(target.values, 1))
    noised, chosen = corruption.add_noise(content, form, draws)
    is_label = _before(content.with_values(chosen)) if corruption.only_noised else True
    label = np.where(is_label, target.values, form.pad)
    sections = (
        context,
        Section.of(
            target.with_values(np.where(target.place == 0, form.cls, noised)),
            first_position=source.lengths,
            segment=form.target_segment,
            step=target.place + 1,
            label=form.pad,
        ),
        _flow(source, target, form, label, first=target.place, number=0),
    )
    return sections if spans is None else (*sections, _flow(source, target, form, label, first=spans(target), number=1))


def _before(content: Ragged) -> np.ndarray:
    """Return the values (N,) of content at the target tokens, one place before; the first value is the last token's."""
    is_last = content.place == content.lengths[content.row] - 1
    following = np.arange(len(content.values)) + 1
    start = np.arange(len(content.values)) - content.place
    values: np.ndarray = content.values[np.where(is_last, start, following)]
    return values


def _flow(
    source: Ragged, target: Ragged, form: SequenceForm, label: np.ndarray, *, first: np.ndarray, number: int
) -> Section:
    """Return a placeholder for each target token.

    Args:
        source: as for :func:`infilling`.
        target: as for :func:`infilling`.
        form: as for :func:`infilling`.
        label: the labels of the target tokens (N,).
        first: index of the first token of each token's span in its target (N,).
        number: number of the flow, from 0; different flows have different groups.
    """
    return Section.of(
        target.with_values(np.full_like(target.values, form.placeholder)),
        first_position=source.lengths + 1,
        segment=form.placeholder_segment,
        # It sees the start symbol, of step 1, and the `first` tokens before its span, of steps 2 to first + 1.
        step=first + 2,
        group=number * target.lengths[target.row] + target.place + 1,
        label=label,
    )


@dataclass(frozen=True)
class Fragments:
    """How fragments are drawn. The defaults are those of the paper."""

    budget: float = 0.25
    """Share of a text's tokens that its fragments have together, gamma."""
    lengths: tuple[tuple[int, int], ...] = ((1, 4), (4, 32))
    """Minimum and maximum length of each uniform distribution."""
    shares: tuple[float, ...] = (0.4, 0.6)
    """Probability of each distribution."""

    def problems(self, lengths: str) -> list[str]:
        """Return error messages for these values; ``lengths`` is the option's text, which a message quotes."""
        found = []
        # A text of n tokens with a budget of b has n - b + 1 places for at most b fragments: b may be up to n / 2.
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
        """Return the number of tokens in the fragments of each text, from the lengths of the texts (B,)."""
        return np.maximum(1, (self.budget * length + 0.5).astype(np.int64))

    def draw(self, text: Ragged, draws: Draws) -> np.ndarray:
        """Draw which tokens belong to the target.

        The last fragment of a text is cut to the rest of the budget. All ways to place the fragments with at least one
        token between them are equally likely.

        Args:
            text: ids of the texts, at least two of each.
            draws: random numbers for these texts.

        Returns:
            A mask, bool (N,).
        """
        budgets = self.target_length(text.lengths)
        fragment = self._draw_lengths(budgets, draws)
        # The source has a place before each of its tokens and one after the last, each for at most one fragment.
        places = Ragged.of_lengths(text.lengths - budgets + 1)
        is_taken = places.with_values(draws.random(places)).rank() < fragment.lengths[places.row]
        # Shuffle the fragments over the places, because the last one drawn tends to be short.
        order = np.lexsort((draws.random(fragment), fragment.row))
        before = np.zeros(len(places.values), dtype=np.int64)
        before[is_taken] = fragment.values[order]
        # For each place: its fragment, then a token of the source, except at the last place of a text.
        is_last = places.place == places.lengths[places.row] - 1
        runs = np.stack([before, np.where(is_last, 0, 1)], axis=1).ravel()
        return np.repeat(np.tile([True, False], len(before)), runs)

    def _draw_lengths(self, budgets: np.ndarray, draws: Draws) -> Ragged:
        """Draw the lengths of the fragments of each text, which sum to its budget (B,)."""
        one_each = Ragged.of_lengths(np.ones_like(budgets))
        bounds = np.cumsum(self.shares)
        kind = np.minimum(np.searchsorted(bounds, draws.random(one_each), side="right"), len(bounds) - 1)
        least, greatest = np.array(self.lengths, dtype=np.int64)[kind].T
        # The most fragments that a text may have: all of length 1.
        drawn = Ragged.of_lengths(budgets)
        width = (greatest - least + 1)[drawn.row]
        lengths = least[drawn.row] + (draws.random(drawn) * width).astype(np.int64)
        totals = np.cumsum(lengths)
        starts = np.cumsum(budgets) - budgets
        of_text = totals - lengths - np.concatenate([[0], totals])[starts][drawn.row]  # before each fragment
        room = budgets[drawn.row] - of_text
        return drawn.with_values(np.minimum(lengths, room)).only(room > 0)


def split(text: Ragged, is_target: np.ndarray) -> tuple[Ragged, Ragged]:
    """Split texts into sources and targets, each in the order of the text.

    Args:
        text: ids of the texts.
        is_target: which tokens belong to the target (N,).
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
    """Return the packed examples of ERNIE-GEN's pre-training: infilling of fragments from the rest of their texts.

    Args:
        text: ids of the texts, without special symbols.
        fragments: how fragments are drawn.
        form: special symbols and segments.
        corruption: the probability of noise.
        draws: random numbers for these texts.
        spans: finds the spans of the span flow; None: no span flow.
    """
    source, target = split(text, fragments.draw(text, draws))
    laid_out = source.between([form.cls], [form.sep]), target.between([], [form.sep])
    return infilling(*laid_out, form, corruption, draws, spans=spans)


def causal_fragments(
    text: Ragged, fragments: Fragments, form: SequenceForm, corruption: Corruption, draws: Draws
) -> PackedExamples:
    """Return the typical generation of fragments (Table 8 of the paper): each token is predicted at the token before.

    The layout is that of causal fine-tuning, ``[CLS] x`` and ``[SEP] y``. The arguments are those of
    :func:`infilled_fragments`.
    """
    source, target = split(text, fragments.draw(text, draws))
    laid_out = source.between([form.cls], []), target.between([], [form.sep])
    return causal(*laid_out, form, corruption, draws)
