"""The pseudo-masked language model: what UniLMv2 is pre-trained on (section 3 of the paper, Figures 3 to 5).

The context of a text holds ``[M]`` in place of its masked tokens; behind it stand the masked tokens themselves, each
known at its factorization step, and a placeholder ``[P]`` for each, all with the positions of the masked tokens. The
``[M]`` predict all masked tokens at once (autoencoding, AE); the ``[P]`` of one factorization step predict its tokens
from the context and the steps before it (partially autoregressive, PAR), in one and the same pass.
"""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from s2sft_fairseq.objectives.blockwise_masking import BlockwiseMasking
from s2sft_fairseq.objectives.corruption import Corruption
from s2sft_fairseq.objectives.draws import Draws
from s2sft_fairseq.objectives.finetuning import context_block
from s2sft_fairseq.objectives.objective import Flow
from s2sft_fairseq.objectives.packing import Block, PackedExamples
from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm


class LanguageModel(NamedTuple):
    """What of the pseudo-masked language model is trained (Table 6 of the paper)."""

    flows: tuple[Flow, ...]
    token_by_token: bool = False
    """Every masked token has a factorization step of its own, left to right in a block (AR)."""

    @property
    def autoencodes(self) -> bool:
        """Whether the [M] predict."""
        return self.flows[0].block == 0

    @property
    def has_placeholders(self) -> bool:
        """Whether there are [P], which predict."""
        return self.flows[-1].block == 2


_AE, _AR, _PAR = Flow("ae", 0), Flow("ar", 2), Flow("par", 2)

LANGUAGE_MODELS: dict[str, LanguageModel] = {
    "ae": LanguageModel((_AE,)),
    "ar": LanguageModel((_AR,), token_by_token=True),
    "par": LanguageModel((_PAR,)),
    "ae+ar": LanguageModel((_AE, _AR), token_by_token=True),
    "ae+par": LanguageModel((_AE, _PAR)),
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
    words = Ragged(text.values[is_word], np.bincount(text.row[is_word], minlength=len(text.lengths)))
    step = np.zeros_like(text.values)
    step[is_word] = masking.draw(words, draws)
    is_masked = step > 0
    drawn = corruption.draw(text, replace(form, placeholder=mask), draws)
    replaced = np.where(is_masked, drawn, text.values)
    context = context_block(text.with_values(replaced), form)._replace(segment=form.segment_column(text))
    if language_model.autoencodes:
        context = context._replace(label=np.where(is_masked, text.values, form.pad))
    if not language_model.has_placeholders:
        return (context,)
    masked = Ragged(text.values[is_masked], np.bincount(text.row[is_masked], minlength=len(text.lengths)))
    step = step[is_masked]
    if language_model.token_by_token:
        step = masked.with_values(step).rank() + 1
    original = Block(
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
    return context, original, placeholder
