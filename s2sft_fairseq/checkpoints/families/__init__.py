"""The families of encoders and language models that can be converted, each described in one module."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from s2sft_fairseq.checkpoints.conversion import MOST_LAYERS, TOKENS, Family, Sizes
from s2sft_fairseq.checkpoints.families.bert import BERT
from s2sft_fairseq.checkpoints.families.deberta import DEBERTA, DEBERTA_DISCRIMINATOR
from s2sft_fairseq.checkpoints.families.electra import ELECTRA
from s2sft_fairseq.checkpoints.families.ernie import ERNIE, PADDLE_ERNIE
from s2sft_fairseq.checkpoints.families.fairseq_roberta import FAIRSEQ_ROBERTA
from s2sft_fairseq.checkpoints.families.language_models import GEMMA3, LANGUAGE_MODELS, LLAMA, QWEN2, QWEN3, SMOLLM3
from s2sft_fairseq.checkpoints.families.modernbert import MODERNBERT
from s2sft_fairseq.checkpoints.families.mpnet import MPNET, is_mpnet
from s2sft_fairseq.checkpoints.families.rms_norm import EUROBERT, NEOBERT, ULTRABERT
from s2sft_fairseq.checkpoints.families.roberta import ROBERTA
from s2sft_fairseq.checkpoints.families.rotary_bert import GTE, JINA, NOMIC_BERT
from s2sft_fairseq.checkpoints.families.s2sft import S2SFT
from s2sft_fairseq.checkpoints.families.settings import activation_name
from s2sft_fairseq.checkpoints.families.unilm import UNILM
from s2sft_fairseq.checkpoints.sizes import is_language_model
from s2sft_fairseq.errors import UserError, as_option, shown

# More specific families come first: s2s-ft's files also match UniLM and BERT, nomic's BERT, and jina's RoBERTa.
FAMILIES = [
    *(S2SFT, UNILM, NOMIC_BERT, JINA, BERT, ROBERTA, FAIRSEQ_ROBERTA, ELECTRA, ERNIE, PADDLE_ERNIE, MODERNBERT),
    *(EUROBERT, ULTRABERT, NEOBERT, GTE, DEBERTA_DISCRIMINATOR, DEBERTA, MPNET),
    *LANGUAGE_MODELS,
]
_WRITTEN = (
    *(BERT, ROBERTA, ELECTRA, UNILM, MODERNBERT, EUROBERT, ULTRABERT, NEOBERT, NOMIC_BERT, GTE, JINA, DEBERTA),
    *(MPNET, *LANGUAGE_MODELS),
)
"""The families in whose formats models are exported, whatever format they were read from."""
_DEEPEST = 4  # parts of the name of an encoder in a larger module
_SHOWN = 120  # maximum number of characters of a name in a message
_SWITCHES = (
    *("norm", "embedding_norm", "layer_norm_position", "feed_forward", "biases", "key_value_heads", "lm_head"),
    *("output_matrix", "output_bias", "source_visibility", "head_dim", "query_key_norm", "embedding_scale"),
    *("unrotated_layers_every", "rotary_scaling", "local_attention_window"),
)
"""The settings that must be those of the family, or that its configuration can express, for a model to be exported."""


def register_family(family: Family) -> None:
    """Make a family known to ``s2sft convert``. It takes precedence over those of this package.

    Raises:
        UserError: another family has its name.
    """
    if family in FAMILIES:
        return
    if any(other.name == family.name for other in FAMILIES):
        raise UserError(f"there is a family {family.name} already: register yours under another name")
    FAMILIES.insert(0, family)


def recognize(names: Iterable[str], config: Mapping[str, Any]) -> Family:
    """Return the family of a checkpoint, from its names or, for an encoder without a head, from its ``model_type``.

    Raises:
        UserError: if both are unknown, or if ``model_type`` is that of an unsupported model. Some of these have the
            names of a known family (CamemBERT those of RoBERTa), but other ids or another architecture.
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
    shown_names = ", ".join(name[:_SHOWN] for name in names[:5])
    raise UserError(
        f"this is no encoder of a known family (s2sft convert --list): the configuration's model_type must be one of "
        f"{', '.join(sorted(kinds))}, but is {shown(kind)}; its parameters: {shown_names}, "
        f"...{_nearest(names)}"
    )


def within(names: Iterable[str], config: Mapping[str, Any]) -> str:
    """Return the prefix of the names of an encoder that is part of a larger module, such as ``model.``; "" for none.

    Args:
        names: the names of all parameters.
        config: the configuration.

    Raises:
        UserError: several parts of the module are such encoders.
    """
    kind = config.get("model_type")
    names = list(names)
    families = [family for family in FAMILIES if kind is None or kind in family.model_types]
    if any("" in _prefixes(family, names) for family in FAMILIES):
        return ""
    found = {prefix for family in families for prefix in _prefixes(family, names)}
    if len(found) > 1:
        parts = ", ".join(sorted(prefix[:_SHOWN] for prefix in found)[:5])
        raise UserError(f"this must be one encoder, but it has several, with the names {parts}: save one of them")
    return next(iter(found), "")


def _prefixes(family: Family, names: Iterable[str]) -> Iterator[str]:
    """Yield what stands before the name of the family's token embedding."""
    theirs = next(theirs for theirs, ours in family.parameters.items() if ours == TOKENS)
    last = theirs.removeprefix(family.base)
    for name in names:
        if not family.respell(name).endswith(last):
            continue
        # The module itself, then one part of its name after the other.
        parts = [f"{part}." for part in name.split(".")]
        depths = range(min(len(parts), _DEEPEST))
        prefixes = ("".join(parts[:depth]) for depth in depths)
        matching = (each for each in prefixes if family.respell(name.removeprefix(each)) in (theirs, last))
        yield from islice(matching, 1)


def _nearest(names: Sequence[str]) -> str:
    """Return a note on the family that has the most of these names, and on the names that it lacks."""
    layers = 1 + max((int(number) for name in names for number in re.findall(r"\.(\d{1,9})\.", name)), default=0)
    lacking = {}
    # Among equally near families, prefer the most common ones.
    usual = (BERT, ROBERTA, LLAMA)
    known_kinds = [*usual, *(family for family in FAMILIES if family.model_types and family not in usual)]
    for family in known_kinds:
        known = family.names(min(layers, MOST_LAYERS))
        today = {name: family.respell(name) for name in names}
        found = [name for name in names if today[name] in known or family.base + today[name] in known]
        lacking[family.name] = [name for name in names if name not in found]
    family = min(known_kinds, key=lambda each: len(lacking[each.name]))
    others = lacking[family.name]
    if len(others) == len(names):
        return ""
    without = f", without {', '.join(others[:5])}{', ...' if len(others) > 5 else ''}" if others else ""
    return f"; the nearest is {family.name} ({', '.join(family.model_types)}){without}"


def table() -> str:
    """Return a table of the families that can be converted, one per line."""
    rows = [("family", "model_type", "written back", "models")]
    rows += [
        (each.name, ", ".join(each.model_types) or "-", "yes" if each in _WRITTEN else "no", each.models)
        for each in FAMILIES
    ]
    rows.append(("DeltaLM", "bart, marian", "yes", "DeltaLM, and what s2sft export made of one"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join("  ".join([*map(str.ljust, row, widths), row[3]]) for row in rows)


def family_of(sizes: Sizes, defaults: Mapping[str, Any] | None = None, padding: int | None = None) -> Family:
    """Return the family whose Hugging Face model has the architecture that these sizes describe.

    Args:
        sizes: the sizes of the model.
        defaults: values of the sizes that a family's configuration does not set.
        padding: the id of the padding symbol; None: not known.

    Raises:
        UserError: if there is no such family, naming how the model differs from the most similar one.
    """
    family = _most_similar(sizes, padding)
    if family.config is None:
        raise UserError(f"{family.name} has no format to write")
    again = {**(defaults or {}), **family.sizes(family.config(sizes))}
    sizes, again = _comparable(sizes), _comparable(again)
    heads = [activation_name(each, "lm_head_activation_fn") for each in (sizes, again)]
    if heads[0] != heads[1]:
        raise UserError(
            f"no model of Hugging Face has this architecture: --lm-head-activation-fn is {heads[0]}, but {heads[1]} in "
            f"{family.name}"
        )
    if differing := [
        f"{as_option(name)} is {sizes[name]}, but {again[name]} in {family.name}"
        for name in _SWITCHES
        if name in sizes
        and name in again
        and str(sizes[name]) != str(again[name])
        and not (name == "output_matrix" and family.tied)
    ]:
        raise UserError.of(differing, "no model of Hugging Face has this architecture:")
    return family


def _comparable(sizes: Sizes) -> Sizes:
    """Return the sizes with those that mean the same in one form, in which families write them."""
    unrotated = sizes.get("unrotated_layers_every", 0)
    return {
        **sizes,
        "head_dim": sizes.get("head_dim") or sizes["encoder_embed_dim"] // sizes["encoder_attention_heads"],
        "rotary_scaling": str(sizes.get("rotary_scaling", "")).replace(".0:", ":").removesuffix(".0"),
        "unrotated_layers_every": unrotated if unrotated <= sizes["encoder_layers"] else 0,
    }


def _language_model(sizes: Sizes) -> Family:
    """Return the family of a language model that is most similar."""
    if str(sizes.get("layer_norm_position")) == "both":
        return GEMMA3
    if str(sizes.get("query_key_norm")) == "rms":
        return QWEN3
    if "qkv" in str(sizes.get("biases")).split(","):
        return QWEN2
    return SMOLLM3 if sizes.get("unrotated_layers_every") else LLAMA


def _most_similar(sizes: Sizes, padding: int | None) -> Family:
    if sizes.get("disentangled_attention", "none") != "none":
        return DEBERTA
    if is_language_model(sizes):
        return _language_model(sizes)
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
        return MPNET if is_mpnet(sizes, padding) else UNILM
    return BERT if sizes["num_segments"] else ROBERTA


__all__ = ["FAMILIES", "family_of", "recognize", "register_family"]
