"""Infilling generation of ERNIE-GEN (section 3.3 of the paper, Figures 3 and 4) in the packed format.

The content of a target begins with a ``[CLS]`` of its own and is noised; it is the contextual flow. Every token is
predicted at a placeholder ``[ATTN]``: once in the word-by-word flow, from all content before it, and once in the
span-by-span flow, from the content before its span. A placeholder sees itself alone beside that content (equations 3
and 4), where the placeholders of a span see each other in UniLMv2.
"""

import numpy as np

from s2sft_fairseq.objectives.corruption import Corruption
from s2sft_fairseq.objectives.draws import Draws
from s2sft_fairseq.objectives.finetuning import SpanSearch, corrupted_context
from s2sft_fairseq.objectives.packing import Block, PackedExamples
from s2sft_fairseq.objectives.ragged import Ragged
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
    blocks = (
        context,
        Block.of(
            target.with_values(np.where(target.place == 0, form.cls, noised)),
            first_position=source.lengths,
            segment=form.target_segment,
            step=target.place + 1,
            label=form.pad,
        ),
        _flow(source, target, form, first=target.place, number=0),
    )
    return blocks if spans is None else (*blocks, _flow(source, target, form, first=spans(target), number=1))


def _flow(source: Ragged, target: Ragged, form: SequenceForm, *, first: np.ndarray, number: int) -> Block:
    """Return a placeholder for each target token.

    Args:
        source, target, form: as for :func:`infilling`.
        first: the place of the first token of each token's span (N,).
        number: of the flow; the groups of two flows must differ.
    """
    return Block.of(
        target.with_values(np.full_like(target.values, form.placeholder)),
        first_position=source.lengths + 1,
        segment=form.placeholder_segment,
        # The content before it are the start symbol, of step 1, and so many tokens.
        step=first + 2,
        group=number * target.lengths[target.row] + target.place + 1,
        label=target.values,
    )
