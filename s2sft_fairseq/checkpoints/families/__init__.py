"""The families of encoders that can be converted, a file each."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from s2sft_fairseq.checkpoints.conversion import Family, Sizes
from s2sft_fairseq.checkpoints.families.bert import BERT
from s2sft_fairseq.checkpoints.families.electra import ELECTRA
from s2sft_fairseq.checkpoints.families.ernie import ERNIE, PADDLE_ERNIE
from s2sft_fairseq.checkpoints.families.fairseq_roberta import FAIRSEQ_ROBERTA
from s2sft_fairseq.checkpoints.families.modernbert import MODERNBERT
from s2sft_fairseq.checkpoints.families.rms_norm import EUROBERT, NEOBERT, ULTRABERT
from s2sft_fairseq.checkpoints.families.roberta import ROBERTA
from s2sft_fairseq.checkpoints.families.rotary_bert import GTE, JINA, NOMIC_BERT
from s2sft_fairseq.checkpoints.families.s2sft import S2SFT
from s2sft_fairseq.checkpoints.families.unilm import UNILM
from s2sft_fairseq.errors import UserError, as_option

# The more special first: s2s-ft's files have BERT's names too, and UniLM's, nomic's those of BERT, jina's RoBERTa's.
FAMILIES = (
    *(S2SFT, UNILM, NOMIC_BERT, JINA, BERT, ROBERTA, FAIRSEQ_ROBERTA, ELECTRA, ERNIE, PADDLE_ERNIE, MODERNBERT),
    *(EUROBERT, ULTRABERT, NEOBERT, GTE),
)
_SWITCHES = (
    *("norm", "embedding_norm", "layer_norm_position", "feed_forward", "biases", "key_value_heads", "lm_head"),
    *("output_matrix", "output_bias"),
)
"""What is the same in all models of a family, or written in its configuration."""


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


def family_of(sizes: Sizes, defaults: Mapping[str, Any] | None = None) -> Family:
    """Return the family whose Hugging Face model has the architecture that these sizes describe.

    Args:
        sizes: of the model.
        defaults: of the sizes that families do not tell.

    Raises:
        UserError: naming what differs in the most similar family, if there is none.
    """
    family = _most_similar(sizes)
    if family.config is None:
        raise UserError(f"{family.name} has no format to write")
    again = {**(defaults or {}), **family.sizes(family.config(sizes))}
    if differing := [
        f"{as_option(name)} is {sizes[name]}, but {again[name]} in {family.name}"
        for name in _SWITCHES
        if name in sizes and name in again and str(sizes[name]) != str(again[name])
    ]:
        raise UserError.of(differing, "no model of Hugging Face has this architecture:")
    return family


def _most_similar(sizes: Sizes) -> Family:
    if str(sizes.get("norm")) == "rms":
        if str(sizes["lm_head"]) == "two_layer":
            return ULTRABERT
        return NEOBERT if str(sizes["output_bias"]) == "yes" and str(sizes["biases"]) == "none" else EUROBERT
    if sizes.get("rotary_base"):
        if str(sizes.get("layer_norm_position", "pre")) == "pre":
            return MODERNBERT
        if str(sizes["feed_forward"]) == "gated":
            return GTE if "attention" in str(sizes["biases"]) else NOMIC_BERT
        return JINA
    if sizes.get("embedding_dim"):
        return ELECTRA
    if sizes.get("relative_position_bins"):
        return UNILM
    return BERT if sizes["num_segments"] else ROBERTA


__all__ = ["FAMILIES", "family_of", "recognize"]
