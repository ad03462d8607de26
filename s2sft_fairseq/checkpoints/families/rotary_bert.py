"""BERT and RoBERTa with rotary positions: nomic-bert, GTE multilingual and jina-embeddings-v3, by Hugging Face's names.

Their layers are post-norm. nomic-bert has SwiGLU, and biases in its norms and head only. GTE has GeGLU with a bias in
the layer after it. jina has the feed-forward network of RoBERTa. The files of their own programs, which transformers
loads with ``trust_remote_code``, have older names; those of the weights are supported here.
"""

from collections.abc import Callable, Mapping
from typing import Any

from s2sft_fairseq.checkpoints.conversion import Family, Sizes, Weights, must_be
from s2sft_fairseq.checkpoints.families.settings import (
    HUGGING_FACE_SIZES,
    activation,
    activation_name,
    one_kind_of_rotation,
    required,
    rotary_base,
)

GATED = {"layers.{}.mlp.gate_proj": "layers.{}.gate", "layers.{}.mlp.up_proj": "layers.{}.up"}
PROJECTIONS = {
    "layers.{}.self_attn.q_proj": "layers.{}.attention.query",
    "layers.{}.self_attn.k_proj": "layers.{}.attention.key",
    "layers.{}.self_attn.v_proj": "layers.{}.attention.value",
    "layers.{}.self_attn.o_proj": "layers.{}.attention.output",
}
_LAYERS = {
    **PROJECTIONS,
    "layers.{}.post_attention_layernorm": "layers.{}.attention_layer_norm",
    "layers.{}.post_mlp_layernorm": "layers.{}.final_layer_norm",
}
_EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "embeddings.tokens.weight",
    "embeddings.token_type_embeddings.weight": "embeddings.segments.weight",
}
_UNUSED = r"pooler\.|rotary_emb\.|embeddings\.(position_ids|token_type_ids)$"
# Names in nomic's configurations before transformers 5.
_OLD_SIZES = {
    "n_layer": "num_hidden_layers",
    "n_embd": "hidden_size",
    "n_inner": "intermediate_size",
    "n_head": "num_attention_heads",
    "n_positions": "max_position_embeddings",
    "layer_norm_epsilon": "layer_norm_eps",
    "rotary_emb_base": "rope_theta",
}


def _named(base: str, names: Mapping[str, str]) -> dict[str, str]:
    return {f"{base}{theirs}": ours for theirs, ours in names.items()}


def _sizes_of(
    default_base: float, segments: int, epsilon: float = 1e-12, **others: Any
) -> Callable[[Mapping[str, Any]], Sizes]:
    """Return a function that reads the sizes from a configuration.

    Args:
        default_base: base of the rotary positions, if the configuration does not set it.
        segments: number of segments, if the configuration does not set it.
        epsilon: that of the norms, if the configuration does not set it.
        others: sizes that all models of the family share.
    """

    def sizes(config: Mapping[str, Any]) -> Sizes:
        config = {**{new: config[old] for old, new in _OLD_SIZES.items() if old in config}, **config}
        must_be(config, rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_emb_scale_base=None)
        must_be(config, prenorm=False, parallel_block=False, use_rms_norm=False, causal=False, is_decoder=False)
        must_be(config, rotary_scaling_factor=1.0, logn_attention_scale=False, layer_norm_type="layer_norm")
        if config.get("position_embedding_type") != "rope":  # of GTE's own program
            must_be(config, position_embedding_type="rotary")
        sizes = required(config, **HUGGING_FACE_SIZES)
        must_be(config, head_dim=sizes["encoder_embed_dim"] // sizes["encoder_attention_heads"])
        function = config.get("activation_function", "swiglu" if "hidden_act" not in config else None)
        silu = {"hidden_act": "silu"} if function == "swiglu" and others.get("activation_fn") == "silu" else {}
        return {
            **sizes,
            "num_segments": config.get("type_vocab_size", segments),
            "layer_norm_eps": config.get("layer_norm_eps", epsilon),
            "rotary_base": rotary_base(config, default_base),
            **others,
            "activation_fn": activation(
                {"hidden_act": others.get("activation_fn", "gelu"), **config, **silu}, "hidden_act"
            ),
        }

    return sizes


def _config_of(kind: str, architecture: str) -> Callable[[Sizes], dict[str, Any]]:
    """Return a function from sizes to the configuration."""

    def config(sizes: Sizes) -> dict[str, Any]:
        return {
            "architectures": [architecture],
            "model_type": kind,
            **{theirs: sizes[ours] for ours, theirs in HUGGING_FACE_SIZES.items()},
            "type_vocab_size": sizes["num_segments"],
            "layer_norm_eps": sizes["layer_norm_eps"],
            "hidden_act": activation_name(sizes),
            "rope_parameters": one_kind_of_rotation(sizes["rotary_base"]),
        }

    return config


def _layout(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return segment 0 as that of targets if the encoder has only one segment."""
    return {"target_segment": 0} if config.get("type_vocab_size", 2) == 1 else {}


def _join_older_names(weights: Weights, sizes: Sizes, config: Mapping[str, Any]) -> None:
    """Rename the layers that older files store fused, and swap the halves of their gated layers."""
    for layer in range(sizes["encoder_layers"]):
        for kind in ("weight", "bias"):
            if (value := weights.pop(f"layers.{layer}.attention.whole.{kind}", None)) is not None:
                weights[f"layers.{layer}.attention.qkv.{kind}"] = value
        if (value := weights.pop(f"layers.{layer}.up_gate.weight", None)) is not None:
            # The half that goes through the activation comes first here.
            weights[f"layers.{layer}.fc1.weight"] = value.roll(len(value) // 2, dims=0)


NOMIC_BERT = Family(
    name="nomic-bert",
    models="nomic-bert-2048, nomic-embed-text",
    model_types=("nomic_bert",),
    base="nomic_bert.",
    signature=r"((nomic_)?bert\.)?encoder\.layers\.\d+\.attn\.Wqkv\.",
    modules={
        **_named("nomic_bert.", {**_LAYERS, **GATED, "layers.{}.mlp.down_proj": "layers.{}.fc2"}),
        "nomic_bert.embeddings.LayerNorm": "embeddings.layer_norm",
        "cls.predictions.transform.dense": "lm_head.dense",
        "cls.predictions.transform.layer_norm": "lm_head.layer_norm",
    },
    parameters={
        **_named("nomic_bert.", _EMBEDDINGS),
        "nomic_bert.layers.{}.attn.Wqkv.weight": "layers.{}.attention.whole.weight",
        "cls.predictions.bias": "lm_head.bias",
    },
    spelling=(
        (r"^bert\.", "nomic_bert."),
        (r"encoder\.layers\.", "layers."),
        (r"emb_ln\.", "embeddings.LayerNorm."),
        (r"\.attn\.out_proj\.", ".self_attn.o_proj."),
        (r"\.fc11\.", ".up_proj."),
        (r"\.fc12\.", ".gate_proj."),
        (r"\.mlp\.fc2\.", ".mlp.down_proj."),
        (r"\.norm1\.", ".post_attention_layernorm."),
        (r"\.norm2\.", ".post_mlp_layernorm."),
    ),
    unused=_UNUSED,
    tied=("cls.predictions.decoder.weight",),
    second_bias="cls.predictions.decoder.bias",
    sizes=_sizes_of(1000.0, 2, feed_forward="gated", biases="norm,head", activation_fn="silu"),
    config=_config_of("nomic_bert", "NomicBertForMaskedLM"),
    adapt=_join_older_names,
    layout=_layout,
)
GTE = Family(
    name="GTE",
    models="gte-multilingual (mGTE)",
    model_types=("gte", "new"),
    base="gte.",
    modules={
        **_named("gte.", {**_LAYERS, **GATED, "layers.{}.mlp.down_proj": "layers.{}.fc2"}),
        "gte.layers.{}.attention.qkv_proj": "layers.{}.attention.whole",
        "gte.embeddings.LayerNorm": "embeddings.layer_norm",
        "lm_head.dense": "lm_head.dense",
        "lm_head.layer_norm": "lm_head.layer_norm",
    },
    parameters={
        **_named("gte.", _EMBEDDINGS),
        "gte.layers.{}.mlp.up_gate_proj.weight": "layers.{}.up_gate.weight",
        "lm_head.decoder.bias": "lm_head.bias",
    },
    spelling=(
        (r"^new\.", "gte."),
        (r"encoder\.layer\.", "layers."),
        (r"\.attention\.o_proj\.", ".self_attn.o_proj."),
        (r"\.attn_ln\.", ".post_attention_layernorm."),
        (r"\.mlp_ln\.", ".post_mlp_layernorm."),
        (r"^lm_head\.norm\.", "lm_head.layer_norm."),
        (r"^lm_head\.bias$", "lm_head.decoder.bias"),
    ),
    unused=_UNUSED,
    tied=("lm_head.decoder.weight",),
    sizes=_sizes_of(160000.0, 1, feed_forward="gated", biases="attention,fc2,norm,head", lm_head_activation_fn="gelu"),
    config=_config_of("gte", "GteForMaskedLM"),
    adapt=_join_older_names,
    layout=_layout,
)
JINA = Family(
    name="jina-embeddings-v3",
    models="jina-embeddings-v3",
    model_types=("jina_embeddings_v3",),
    base="roberta.",
    signature=r"(roberta\.)?(encoder\.)?layers\.\d+\.(mixer\.Wqkv|mlp\.fc1)\.",
    modules={
        **_named("roberta.", {**_LAYERS, "layers.{}.mlp.fc1": "layers.{}.fc1", "layers.{}.mlp.fc2": "layers.{}.fc2"}),
        "roberta.layers.{}.mixer.Wqkv": "layers.{}.attention.whole",
        "roberta.embeddings.LayerNorm": "embeddings.layer_norm",
        "lm_head.dense": "lm_head.dense",
        "lm_head.layer_norm": "lm_head.layer_norm",
    },
    parameters={**_named("roberta.", _EMBEDDINGS), "lm_head.bias": "lm_head.bias"},
    spelling=(
        (r"\.parametrizations\.weight\.original$", ".weight"),
        (r"encoder\.layers\.", "layers."),
        (r"emb_ln\.", "embeddings.LayerNorm."),
        (r"\.mixer\.out_proj\.", ".self_attn.o_proj."),
        (r"\.norm1\.", ".post_attention_layernorm."),
        (r"\.norm2\.", ".post_mlp_layernorm."),
    ),
    unused=_UNUSED + r"|.*\.lora_[AB]$",
    tied=("lm_head.decoder.weight",),
    second_bias="lm_head.decoder.bias",
    sizes=_sizes_of(20000.0, 1, 1e-5, lm_head_activation_fn="gelu"),
    config=_config_of("jina_embeddings_v3", "JinaEmbeddingsV3ForMaskedLM"),
    adapt=_join_older_names,
    layout=_layout,
)
