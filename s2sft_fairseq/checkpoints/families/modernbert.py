"""ModernBERT (arXiv 2412.13663) and encoders with the same architecture, by Hugging Face's names."""

from collections.abc import Mapping
from typing import Any

from s2sft_fairseq.checkpoints.conversion import Family, Sizes, must_be
from s2sft_fairseq.checkpoints.families.settings import (
    HUGGING_FACE_SIZES,
    activation,
    activation_name,
    one_kind_of_rotation,
    required,
    rotary_base,
)
from s2sft_fairseq.errors import UserError, shown

FULL, LOCAL = "full_attention", "sliding_attention"


def _sizes(config: Mapping[str, Any]) -> Sizes:
    sizes = required(config, **HUGGING_FACE_SIZES, local_attention_window="local_attention")
    must_be(config, attention_bias=False, mlp_bias=False, norm_bias=False, classifier_bias=False)
    must_be(config, sliding_window=sizes["local_attention_window"] // 2)
    function, of_head = (activation(config, name) for name in ("hidden_activation", "classifier_activation"))
    return {
        **sizes,
        "num_segments": 0,
        "layer_norm_eps": config.get("norm_eps", 1e-5),
        "activation_fn": function,
        **({} if of_head == function else {"lm_head_activation_fn": of_head}),
        "layer_norm_position": "pre",
        "feed_forward": "gated",
        "biases": "none",
        "rotary_base": rotary_base(config, 160000.0, FULL, "global_rope_theta"),
        "local_rotary_base": rotary_base(config, 10000.0, LOCAL, "local_rope_theta"),
        "global_attention_every": _global_attention_every(config, sizes["encoder_layers"]),
        "output_bias": "no" if config.get("decoder_bias") is False else "yes",
    }


def _global_attention_every(config: Mapping[str, Any], num_layers: int) -> int:
    """Return n if every n-th layer is global; transformers 5 has a list of all layers in place of this number."""
    kinds = config.get("layer_types")
    if kinds is None:
        return config.get("global_attn_every_n_layers", 3)
    # The list's length is limited, the number of layers is not yet.
    for every in range(1, num_layers + 1) if len(kinds) == num_layers else ():
        if kinds == _layer_types(num_layers, every):
            return every
    raise UserError(
        f"the configuration's layer_types must have {FULL!r} in layers 0, n, 2n, ... of {num_layers} and {LOCAL!r} in "
        f"the others, but is {shown(kinds)}"
    )


def _layer_types(num_layers: int, every: int) -> list[str]:
    return [LOCAL if layer % every else FULL for layer in range(num_layers)]


def _config(sizes: Sizes) -> dict[str, Any]:
    local_base = sizes["local_rotary_base"] or sizes["rotary_base"]
    return {
        "architectures": ["ModernBertForMaskedLM"],
        "model_type": "modernbert",
        **{theirs: sizes[ours] for ours, theirs in HUGGING_FACE_SIZES.items()},
        "local_attention": sizes["local_attention_window"],
        "layer_types": _layer_types(sizes["encoder_layers"], sizes["global_attention_every"]),
        "rope_parameters": {
            FULL: one_kind_of_rotation(sizes["rotary_base"]),
            LOCAL: one_kind_of_rotation(local_base),
        },
        # For transformers before 5.
        "global_attn_every_n_layers": sizes["global_attention_every"],
        "global_rope_theta": sizes["rotary_base"],
        "local_rope_theta": local_base,
        "norm_eps": sizes["layer_norm_eps"],
        "decoder_bias": sizes.get("output_bias", "yes") == "yes",
        "hidden_activation": activation_name(sizes),
        "classifier_activation": activation_name(sizes, "lm_head_activation_fn"),
    }


def _layout(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first symbol of sources if it is not ``[CLS]``: mmBERT begins and ends texts with the same symbol."""
    ids = config.get("cls_token_id"), config.get("sep_token_id")
    return {"source_start": "sep"} if None not in ids and ids[0] == ids[1] else {}


MODERNBERT = Family(
    name="ModernBERT",
    models="ModernBERT, Ettin, mmBERT",
    model_types=("modernbert",),
    base="model.",
    signature=r"(model\.)?layers\.\d+\.attn\.Wqkv\.",
    modules={},
    parameters={
        "model.embeddings.tok_embeddings.weight": "embeddings.tokens.weight",
        "model.embeddings.norm.weight": "embeddings.layer_norm.weight",
        "model.layers.{}.attn_norm.weight": "layers.{}.attention_layer_norm.weight",
        "model.layers.{}.attn.Wqkv.weight": "layers.{}.attention.qkv.weight",
        "model.layers.{}.attn.Wo.weight": "layers.{}.attention.output.weight",
        "model.layers.{}.mlp_norm.weight": "layers.{}.final_layer_norm.weight",
        "model.layers.{}.mlp.Wi.weight": "layers.{}.fc1.weight",
        "model.layers.{}.mlp.Wo.weight": "layers.{}.fc2.weight",
        "model.final_norm.weight": "layer_norm.weight",
        "head.dense.weight": "lm_head.dense.weight",
        "head.norm.weight": "lm_head.layer_norm.weight",
        "decoder.bias": "lm_head.bias",
    },
    tied=("decoder.weight",),
    sizes=_sizes,
    config=_config,
    layout=_layout,
)
