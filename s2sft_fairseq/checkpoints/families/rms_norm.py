"""Encoders with the layers of current decoders: EuroBERT and UltraBERT by Hugging Face's names, NeoBERT by its own.

They have RMSNorm before attention and feed-forward network but not after the embeddings, SwiGLU, rotary positions, few
or no biases, and an untied output matrix. EuroBERT (arXiv 2503.05500) has no hidden layer in its head, and groups of
heads may share keys and values. UltraBERT has two hidden layers in its head, and local layers. NeoBERT (arXiv
2502.19587) has no hidden layer in its head, but an output bias.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.checkpoints.conversion import Family, Sizes, Weights, must_be
from s2sft_fairseq.checkpoints.families.modernbert import FULL, LOCAL
from s2sft_fairseq.checkpoints.families.rotary_bert import GATED, PROJECTIONS
from s2sft_fairseq.checkpoints.families.settings import (
    HUGGING_FACE_SIZES,
    activation,
    activation_name,
    one_kind_of_rotation,
    required,
    rotary_base,
)
from s2sft_fairseq.errors import UserError, shown

_COMMON = {
    "num_segments": 0,
    "norm": "rms",
    "layer_norm_position": "pre",
    "embedding_norm": "no",
    "feed_forward": "gated",
    "output_matrix": "own",
}
MODULES = {
    **{
        f"model.{theirs}": ours
        for theirs, ours in {
            **PROJECTIONS,
            **GATED,
            "layers.{}.mlp.down_proj": "layers.{}.fc2",
            "layers.{}.input_layernorm": "layers.{}.attention_layer_norm",
            "layers.{}.post_attention_layernorm": "layers.{}.final_layer_norm",
        }.items()
    },
    "model.norm": "layer_norm",
}
EMBEDDING = {"model.embed_tokens.weight": "embeddings.tokens.weight"}


def decoder_sizes(
    config: Mapping[str, Any], epsilon: float, function: str = "hidden_act", usual: str = "silu"
) -> Sizes:
    """Return the sizes of layers of current decoders.

    Args:
        config: the configuration.
        epsilon: that of the norms, if the configuration does not set it.
        function: the setting of the activation.
        usual: the activation if the configuration does not set it.
    """
    sizes = required(config, **HUGGING_FACE_SIZES)
    heads, width = sizes["encoder_attention_heads"], sizes["encoder_embed_dim"]
    head_dim = config.get("head_dim") or width // heads
    shared = config.get("num_key_value_heads") or heads
    biased = (["attention"] if config.get("attention_bias") else []) + (
        ["fc1", "fc2"] if config.get("mlp_bias") else []
    )
    return {
        **sizes,
        **_COMMON,
        "layer_norm_eps": config.get("rms_norm_eps", epsilon),
        "activation_fn": activation({function: usual, **config}, function),
        "biases": ",".join(biased) or "none",
        "key_value_heads": 0 if shared == heads else shared,
        "head_dim": 0 if head_dim * heads == width else head_dim,
    }


def _encoder_sizes(config: Mapping[str, Any], epsilon: float) -> Sizes:
    sizes = decoder_sizes(config, epsilon)
    must_be(config, tie_word_embeddings=False)
    if sizes.pop("head_dim"):
        raise UserError(
            f"the configuration's head_dim must be hidden_size / num_attention_heads, but is {config.get('head_dim')}"
        )
    return sizes


def decoder_config(sizes: Sizes) -> dict[str, Any]:
    """Return the settings that `decoder_sizes` reads, without those in which families differ."""
    biased = str(sizes["biases"]).split(",")
    return {
        **{theirs: sizes[ours] for ours, theirs in HUGGING_FACE_SIZES.items()},
        "num_key_value_heads": sizes["key_value_heads"] or sizes["encoder_attention_heads"],
        "hidden_act": activation_name(sizes),
        "rms_norm_eps": sizes["layer_norm_eps"],
        "attention_bias": "attention" in biased,
        "mlp_bias": "fc1" in biased,
        "tie_word_embeddings": False,
    }


def _eurobert_sizes(config: Mapping[str, Any]) -> Sizes:
    return {
        **_encoder_sizes(config, 1e-5),
        "lm_head": "plain",
        "output_bias": "yes" if config.get("mlp_bias") else "no",
        "rotary_base": rotary_base(config, None),
    }


def _eurobert_config(sizes: Sizes) -> dict[str, Any]:
    return {
        "architectures": ["EuroBertForMaskedLM"],
        "model_type": "eurobert",
        **decoder_config(sizes),
        "rope_parameters": one_kind_of_rotation(sizes["rotary_base"]),
    }


def _ultrabert_sizes(config: Mapping[str, Any]) -> Sizes:
    sizes = _encoder_sizes(config, 1e-6)
    windows = config.get("attention_windows")  # in its first configurations: one per layer, 0 for global attention
    kinds = config.get("layer_types") or (windows and [LOCAL if window else FULL for window in windows])
    radius = next(filter(None, windows or ()), config.get("sliding_window", 128))
    every, first = global_layers(kinds, sizes["encoder_layers"]) if kinds else (3, 2)
    return {
        **sizes,
        "lm_head": "two_layer",
        "output_bias": "no",
        "lm_head_dim": config.get("prediction_head_size", 768),
        "lm_head_activation_fn": "gelu_tanh",
        "rotary_base": rotary_base(config, 2560000.0, FULL),
        "local_rotary_base": rotary_base(config, 10000.0, LOCAL),
        "local_attention_window": 2 * radius,
        "global_attention_every": every,
        "first_global_layer": first,
    }


def global_layers(kinds: list[str], num_layers: int) -> tuple[int, int]:
    """Return n if every n-th layer is global, and the index of the first global layer.

    Raises:
        UserError: if the global layers are distributed in another way.
    """
    first = kinds.index(FULL) if FULL in kinds else num_layers
    # The list's length is limited, the number of layers is not yet.
    for every in range(first + 1, num_layers + 2) if len(kinds) == num_layers else ():
        if kinds == layer_types(num_layers, every, first):
            return every, first
    raise UserError(
        f"the configuration's layer_types must have {FULL!r} in every n-th of {num_layers} layers, but is "
        f"{shown(kinds)}"
    )


def layer_types(num_layers: int, every: int, first: int) -> list[str]:
    """Return the kind of each layer, the inverse of `global_layers`."""
    return [FULL if layer % every == first else LOCAL for layer in range(num_layers)]


def _ultrabert_config(sizes: Sizes) -> dict[str, Any]:
    return {
        "architectures": ["UltrabertForMaskedLM"],
        "model_type": "ultrabert",
        **decoder_config(sizes),
        "sliding_window": sizes["local_attention_window"] // 2,
        "layer_types": layer_types(
            sizes["encoder_layers"], sizes["global_attention_every"], sizes["first_global_layer"]
        ),
        "rope_parameters": {
            FULL: one_kind_of_rotation(sizes["rotary_base"]),
            LOCAL: one_kind_of_rotation(sizes["local_rotary_base"] or sizes["rotary_base"]),
        },
        "prediction_head_size": sizes["lm_head_dim"] or sizes["encoder_embed_dim"],
    }


def _neobert_sizes(config: Mapping[str, Any]) -> Sizes:
    given = {name: name for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")}
    required(config, **given)
    must_be(config, rms_norm=True, rope=True, dim_head=config["hidden_size"] // config["num_attention_heads"])
    must_be({**config, "hidden_act": str(config.get("hidden_act") or "swiglu").lower()}, hidden_act="swiglu")
    return {
        **_COMMON,
        "encoder_layers": config["num_hidden_layers"],
        "encoder_embed_dim": config["hidden_size"],
        # Two thirds, so that three matrices have as many parameters as two would; rounded up to a multiple of 8.
        "encoder_ffn_embed_dim": -(-(2 * config["intermediate_size"] // 3) // 8) * 8,
        "encoder_attention_heads": config["num_attention_heads"],
        "max_positions": config.get("max_length", 4096),
        "layer_norm_eps": config.get("norm_eps", 1e-6),
        "activation_fn": "silu",
        "biases": "none",
        "lm_head": "plain",
        "output_bias": "yes",
        "rotary_base": 10000.0,
    }


def _neobert_config(sizes: Sizes) -> dict[str, Any]:
    inner = sizes["encoder_ffn_embed_dim"]
    return {
        "architectures": ["NeoBERTLMHead"],
        "model_type": "neobert",
        "hidden_size": sizes["encoder_embed_dim"],
        "num_hidden_layers": sizes["encoder_layers"],
        "num_attention_heads": sizes["encoder_attention_heads"],
        "intermediate_size": -(-3 * inner // 2),
        "max_length": sizes["max_positions"],
        "norm_eps": sizes["layer_norm_eps"],
    }


def _by_head(value: Tensor, sizes: Sizes) -> Tensor:
    """Reorder the rows of NeoBERT's fused projection, grouped by head, into ours: all queries, all keys, all values.

    Pairs of dimensions that are rotated together are neighbors there, and half a head apart here. h: heads; d: width of
    a head; H: width.
    """
    heads, width = sizes["encoder_attention_heads"], value.size(1)
    # (h 3 d, H) -> (h, 3, d / 2, 2, H) -> (3, h, 2, d / 2, H)
    parts = value.view(heads, 3, -1, 2, width).permute(1, 0, 3, 2, 4)
    rotated, values = parts[:2].flatten(0, 3), value.view(heads, 3, -1, width)[:, 2].flatten(0, 1)
    return torch.cat([rotated, values])


def _adapt_neobert(weights: Weights, sizes: Sizes, config: Mapping[str, Any]) -> None:
    for layer in range(sizes["encoder_layers"]):
        name = f"layers.{layer}.attention.qkv.weight"
        if name in weights:
            weights[name] = _by_head(weights[name], sizes)


def _restore_neobert(weights: Weights, sizes: Sizes, config: dict[str, Any]) -> None:
    heads, width = sizes["encoder_attention_heads"], sizes["encoder_embed_dim"]
    for layer in range(sizes["encoder_layers"]):
        name = f"layers.{layer}.attention.qkv.weight"
        query, key, values = weights[name].chunk(3)
        # (H, H) -> (h, 2, d / 2, H) -> (h, d, H)
        rotated = (each.view(heads, 2, -1, width).transpose(1, 2).flatten(1, 2) for each in (query, key))
        weights[name] = torch.stack([*rotated, values.view(heads, -1, width)], dim=1).flatten(0, 2)


EUROBERT = Family(
    name="EuroBERT",
    models="EuroBERT 210m, 610m, 2.1B",
    model_types=("eurobert",),
    base="model.",
    modules=MODULES,
    parameters={**EMBEDDING, "lm_head.weight": "lm_head.weight", "lm_head.bias": "lm_head.bias"},
    sizes=_eurobert_sizes,
    config=_eurobert_config,
)
ULTRABERT = Family(
    name="UltraBERT",
    models="UltraBERT 150M",
    model_types=("ultrabert",),
    base="model.",
    modules=MODULES,
    parameters={
        **EMBEDDING,
        "head.linear1.weight": "lm_head.dense.weight",
        "head.linear2.weight": "lm_head.dense2.weight",
        "head.decoder.weight": "lm_head.weight",
    },
    spelling=((r"^ultrabert\.", "model."), (r"^cls\.", "head.decoder.")),
    sizes=_ultrabert_sizes,
    config=_ultrabert_config,
)
NEOBERT = Family(
    name="NeoBERT",
    models="NeoBERT",
    model_types=("neobert",),
    base="model.",
    signature=r"(model\.)?transformer_encoder\.\d+\.ffn\.w12\.",
    modules={},
    parameters={
        "model.encoder.weight": "embeddings.tokens.weight",
        "model.transformer_encoder.{}.qkv.weight": "layers.{}.attention.qkv.weight",
        "model.transformer_encoder.{}.wo.weight": "layers.{}.attention.output.weight",
        "model.transformer_encoder.{}.attention_norm.weight": "layers.{}.attention_layer_norm.weight",
        "model.transformer_encoder.{}.ffn.w12.weight": "layers.{}.fc1.weight",
        "model.transformer_encoder.{}.ffn.w3.weight": "layers.{}.fc2.weight",
        "model.transformer_encoder.{}.ffn_norm.weight": "layers.{}.final_layer_norm.weight",
        "model.layer_norm.weight": "layer_norm.weight",
        "decoder.weight": "lm_head.weight",
        "decoder.bias": "lm_head.bias",
    },
    unused=r"freqs_cis$",
    sizes=_neobert_sizes,
    config=_neobert_config,
    adapt=_adapt_neobert,
    restore=_restore_neobert,
)
