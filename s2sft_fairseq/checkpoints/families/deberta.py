"""DeBERTa v2, v3 and multilingual v3 (arXiv 2006.03654, 2111.09543), by Hugging Face's names.

Version 3 was trained to detect replaced tokens, as ELECTRA's discriminators were. Its files have a head for that
(``mask_predictions``). Their language model head, as far as they have one, does not belong to the encoder and is left
out. The convolution of version 2 is not supported: it would show a placeholder the tokens on both sides of it.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from s2sft_fairseq.checkpoints.conversion import Family, Sizes, must_be
from s2sft_fairseq.checkpoints.families.bert import EMBEDDINGS, ENCODER, UNUSED, with_base
from s2sft_fairseq.checkpoints.families.settings import (
    HUGGING_FACE_SIZES,
    activation,
    activation_name,
    required,
)
from s2sft_fairseq.errors import UserError, shown

_TERMS = {"c2p": ["c2p"], "p2c": ["p2c"], "both": ["p2c", "c2p"]}
_LAYER_NORM = "layer_norm"


def _sizes(config: Mapping[str, Any]) -> Sizes:
    sizes = required(config, **HUGGING_FACE_SIZES)
    width, heads = sizes["encoder_embed_dim"], sizes["encoder_attention_heads"]
    # The defaults of transformers, which are not the values that this model needs.
    defaults = {"relative_attention": False, "position_biased_input": True}
    must_be({**defaults, **config}, relative_attention=True, position_biased_input=False)
    must_be(config, conv_kernel_size=0, embedding_size=width, attention_head_size=width // heads)
    furthest = config.get("max_relative_positions", -1)
    return {
        **sizes,
        "num_segments": config.get("type_vocab_size", 0),
        "layer_norm_eps": config.get("layer_norm_eps", 1e-7),
        "activation_fn": activation(config, "hidden_act"),
        "disentangled_attention": _terms(config),
        "disentangled_buckets": max(0, config.get("position_buckets", -1)),
        "disentangled_projections": "shared" if config.get("share_att_key", False) else "own",
        "disentangled_norm": _LAYER_NORM if _LAYER_NORM in config.get("norm_rel_ebd", "none").lower() else "none",
        "max_relative_position": furthest if furthest >= 1 else sizes["max_positions"],
    }


def _terms(config: Mapping[str, Any]) -> str:
    """Return our name for ``pos_att_type``, the products with relative positions: a list, or names joined by ``|``."""
    given = config.get("pos_att_type") or []
    names = sorted(given.lower().split("|") if isinstance(given, str) else given)
    for ours, theirs in _TERMS.items():
        if names == sorted(theirs):
            return ours
    raise UserError(f"the configuration's pos_att_type must be c2p, p2c or both, but is {shown(given)}")


def _config(sizes: Sizes) -> dict[str, Any]:
    return {
        "architectures": ["DebertaV2ForMaskedLM"],
        "model_type": "deberta-v2",
        **{theirs: sizes[ours] for ours, theirs in HUGGING_FACE_SIZES.items()},
        "type_vocab_size": sizes["num_segments"],
        "layer_norm_eps": sizes["layer_norm_eps"],
        "hidden_act": activation_name(sizes),
        "pooler_hidden_act": "tanh",  # the activation of our classification head, as in BERT
        "relative_attention": True,
        "position_biased_input": False,
        "pos_att_type": _TERMS[str(sizes["disentangled_attention"])],
        "position_buckets": sizes["disentangled_buckets"] or -1,
        "share_att_key": str(sizes["disentangled_projections"]) == "shared",
        "norm_rel_ebd": str(sizes["disentangled_norm"]),
        "max_relative_positions": sizes["max_relative_position"],
    }


_BASE = "deberta."
_MODULES = {
    **{re.sub(r"self\.(\w+)$", r"self.\1_proj", theirs): ours for theirs, ours in ENCODER.items()},
    "encoder.layer.{}.attention.self.pos_key_proj": "layers.{}.attention.position_key",
    "encoder.layer.{}.attention.self.pos_query_proj": "layers.{}.attention.position_query",
    "encoder.LayerNorm": "relative_position.layer_norm",
}
_PARAMETERS = {
    **{theirs: ours for theirs, ours in EMBEDDINGS.items() if "position" not in theirs},
    "encoder.rel_embeddings.weight": "relative_position.embedding.weight",
}

DEBERTA = Family(
    name="DeBERTa",
    models="DeBERTa v2 and v3, mDeBERTa",
    model_types=("deberta-v2",),
    base=_BASE,
    signature=r"deberta\.embeddings\.",
    modules={
        **with_base(_BASE, _MODULES),
        "cls.predictions.transform.dense": "lm_head.dense",
        "cls.predictions.transform.LayerNorm": "lm_head.layer_norm",
    },
    parameters={**with_base(_BASE, _PARAMETERS), "cls.predictions.bias": "lm_head.bias"},
    # The head of the original program, which transformers uses with ``legacy: false``.
    spelling=(
        (r"^lm_predictions\.lm_head\.(dense|LayerNorm)", r"cls.predictions.transform.\1"),
        (r"^lm_predictions\.lm_head\.bias", "cls.predictions.bias"),
    ),
    # The position table is not added to the input.
    unused=UNUSED + r"|embeddings\.position_embeddings\.",
    tied=("cls.predictions.decoder.weight",),
    second_bias="cls.predictions.decoder.bias",
    sizes=_sizes,
    config=_config,
)

DEBERTA_DISCRIMINATOR = replace(
    DEBERTA,
    name="DeBERTa v3",
    models="DeBERTa v3 and mDeBERTa as published, discriminators with an unusable head",
    signature=r"mask_predictions\.",
    modules=with_base(_BASE, _MODULES),
    parameters=with_base(_BASE, _PARAMETERS),
    second_bias="",
)
