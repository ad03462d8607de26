"""The families of encoders that can be converted, a file each."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from s2sft_fairseq.checkpoints.conversion import Family, Sizes
from s2sft_fairseq.checkpoints.families.bert import BERT
from s2sft_fairseq.checkpoints.families.deberta import DEBERTA, DEBERTA_DISCRIMINATOR
from s2sft_fairseq.checkpoints.families.electra import ELECTRA
from s2sft_fairseq.checkpoints.families.ernie import ERNIE, PADDLE_ERNIE
from s2sft_fairseq.checkpoints.families.fairseq_roberta import FAIRSEQ_ROBERTA
from s2sft_fairseq.checkpoints.families.modernbert import MODERNBERT
from s2sft_fairseq.checkpoints.families.roberta import ROBERTA
from s2sft_fairseq.checkpoints.families.s2sft import S2SFT
from s2sft_fairseq.checkpoints.families.unilm import UNILM
from s2sft_fairseq.errors import UserError

# The more special first: s2s-ft's files have BERT's names too, and UniLM's.
FAMILIES = (
    *(S2SFT, UNILM, BERT, ROBERTA, FAIRSEQ_ROBERTA, ELECTRA, ERNIE, PADDLE_ERNIE, MODERNBERT),
    *(DEBERTA_DISCRIMINATOR, DEBERTA),
)


def recognize(names: Iterable[str], config: Mapping[str, Any]) -> Family:
    """Tell the family of a checkpoint by its names, or, for an encoder without any head, by its ``model_type``.

    Raises:
        UserError: if neither is known, or if ``model_type`` is that of another model, some of which have the names of a
            known family (CamemBERT those of RoBERTa) but other ids or another architecture.
    """
    names = sorted(names)
    kinds = {kind: family for family in FAMILIES for kind in family.model_types}
    kind = config.get("model_type")
    if kind is None or kind in kinds:
        for family in FAMILIES:
            if any(re.match(family.signature, name) for name in names):
                return family
    if kind in kinds:
        return kinds[kind]
    raise UserError(
        f"this is no encoder of a known family: the configuration's model_type must be one of "
        f"{', '.join(sorted(kinds))}, but is {kind!r}; its parameters: {', '.join(names[:5])}, ..."
    )


def family_of(sizes: Sizes) -> Family:
    """Return the family whose Hugging Face model has the architecture that these sizes describe."""
    if sizes.get("disentangled_attention", "none") != "none":
        return DEBERTA
    if sizes.get("rotary_base"):
        return MODERNBERT
    if sizes.get("embedding_dim"):
        return ELECTRA
    if sizes.get("relative_position_bins"):
        return UNILM
    return BERT if sizes["num_segments"] else ROBERTA


__all__ = ["FAMILIES", "family_of", "recognize"]
