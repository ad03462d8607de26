"""Language models, whose sources are read from left to right, by Hugging Face's names.

Llama (arXiv 2302.13971; SmolLM2, TinyLlama and Llama 3.2 have its layers) is EuroBERT with one direction. SmolLM3 has
no rotary positions in every fourth layer, Qwen2 (arXiv 2407.10671) biases of queries, keys and values, Qwen3 (arXiv
2505.09388) norms of queries and keys. Gemma 3 (arXiv 2503.19786) also normalizes the outputs of attention and
feed-forward network, scales its embeddings, and has local layers.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.checkpoints.conversion import TOKENS, Family, Sizes, Weights, must_be
from s2sft_fairseq.checkpoints.families.modernbert import FULL, LOCAL
from s2sft_fairseq.checkpoints.families.rms_norm import (
    EMBEDDING,
    MODULES,
    decoder_config,
    decoder_sizes,
    global_layers,
    layer_types,
)
from s2sft_fairseq.checkpoints.families.settings import (
    activation_name,
    required,
    rotary_base,
    rotation,
    rotation_settings,
)
from s2sft_fairseq.checkpoints.finite_weights import dtype_name
from s2sft_fairseq.errors import UserError, shown

_CAUSAL = {"source_visibility": "causal", "lm_head": "plain", "output_bias": "no"}
_QUERY_KEY_NORMS = {
    "model.layers.{}.self_attn.q_norm": "layers.{}.attention.query_norm",
    "model.layers.{}.self_attn.k_norm": "layers.{}.attention.key_norm",
}
_FOUR_NORMS = {
    "model.layers.{}.post_attention_layernorm": "layers.{}.attention_output_norm",
    "model.layers.{}.pre_feedforward_layernorm": "layers.{}.final_layer_norm",
    "model.layers.{}.post_feedforward_layernorm": "layers.{}.ffn_output_norm",
}


def _output_matrix(config: Mapping[str, Any]) -> dict[str, str]:
    return {"output_matrix": "own" if config.get("tie_word_embeddings") is False else "tied"}


def _without_local_layers(config: Mapping[str, Any], base: float) -> Sizes:
    """Return the sizes of a model all of whose layers are global."""
    must_be(config, use_sliding_window=False, partial_rotary_factor=1)
    sizes = decoder_sizes(config, 1e-6)
    kinds, num_layers = config.get("layer_types"), sizes["encoder_layers"]
    if kinds is not None and not (len(kinds) == num_layers and all(kind == FULL for kind in kinds)):
        raise UserError(
            f"the configuration's layer_types must be {FULL!r} in all {num_layers} layers for this model, but is "
            f"{shown(kinds)}"
        )
    return {**sizes, **_CAUSAL, **_output_matrix(config), **rotation(config, base)}


def _llama_sizes(config: Mapping[str, Any]) -> Sizes:
    return _without_local_layers(config, 10000.0)


def _smollm3_sizes(config: Mapping[str, Any]) -> Sizes:
    required(config, key_value_heads="num_key_value_heads")
    sizes = _without_local_layers(config, 2000000.0)
    return {**sizes, "unrotated_layers_every": _unrotated_layers_every(config, sizes["encoder_layers"])}


def _unrotated_layers_every(config: Mapping[str, Any], num_layers: int) -> int:
    """Return n if every n-th layer has no rotary positions; 0 if all have.

    Raises:
        UserError: if the layers without rotary positions are distributed in another way.
    """
    rotated = config.get("no_rope_layers")
    if rotated is None:
        interval: int = required({"no_rope_layer_interval": 4, **config}, every="no_rope_layer_interval")["every"]
        return interval if interval <= num_layers else 0
    if len(rotated) == num_layers:
        if all(each == 1 for each in rotated):
            return 0
        for every in range(1, num_layers + 1):
            if rotated == _rotated_layers(num_layers, every):
                return every
    raise UserError(
        f"the configuration's no_rope_layers must be 0 in layers n - 1, 2n - 1, ... of {num_layers} and 1 in the "
        f"others, but is {shown(rotated)}"
    )


def _rotated_layers(num_layers: int, every: int) -> list[int]:
    return [0 if layer % every == every - 1 else 1 for layer in range(num_layers)]


def _qwen2_sizes(config: Mapping[str, Any]) -> Sizes:
    required(config, key_value_heads="num_key_value_heads")
    return {**_without_local_layers(config, 10000.0), "biases": "qkv"}


def _qwen3_sizes(config: Mapping[str, Any]) -> Sizes:
    required(config, key_value_heads="num_key_value_heads", head_dim="head_dim")
    return {**_without_local_layers(config, 10000.0), "query_key_norm": "rms"}


def _gemma3_sizes(config: Mapping[str, Any]) -> Sizes:
    required(
        config,
        key_value_heads="num_key_value_heads",
        head_dim="head_dim",
        scores_by="query_pre_attn_scalar",
        window="sliding_window",
    )
    must_be(config, attn_logit_softcapping=None, final_logit_softcapping=None, use_bidirectional_attention=False)
    must_be(config, partial_rotary_factor=1)
    if (window := config["sliding_window"]) < 2:
        raise UserError(f"the configuration's sliding_window must be at least 2, but is {window}")
    sizes = decoder_sizes(config, 1e-6, "hidden_activation", "gelu_pytorch_tanh")
    every, first = _gemma3_global_layers(config, sizes["encoder_layers"])
    of_local_layers = {name: value for name, value in config.items() if name != "rope_scaling"}
    return {
        **sizes,
        **_CAUSAL,
        **_output_matrix(config),
        **rotation(config, 1000000.0, FULL),
        "local_rotary_base": rotary_base(of_local_layers, 10000.0, LOCAL, "rope_local_base_freq"),
        "layer_norm_position": "both",
        "query_key_norm": "rms",
        "embedding_scale": math.sqrt(sizes["encoder_embed_dim"]),
        # A window holds the token itself and those before it.
        "local_attention_window": 2 * (window - 1),
        "global_attention_every": every,
        "first_global_layer": first,
    }


def _gemma3_global_layers(config: Mapping[str, Any], num_layers: int) -> tuple[int, int]:
    """Return n if every n-th layer is global, and the first of them."""
    if "layer_types" in config:
        return global_layers(config["layer_types"], num_layers)
    names = ("sliding_window_pattern", "_sliding_window_pattern")
    pattern = {"sliding_window_pattern": next((config[name] for name in names if name in config), 6)}
    every = required(pattern, every="sliding_window_pattern")["every"]
    return every, every - 1


def _written(kind: str, architecture: str, sizes: Sizes) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": kind,
        **decoder_config(sizes),
        "head_dim": sizes["head_dim"] or sizes["encoder_embed_dim"] // sizes["encoder_attention_heads"],
        "tie_word_embeddings": str(sizes["output_matrix"]) == "tied",
        **rotation_settings(sizes),
    }


def _config_of(kind: str, architecture: str) -> Callable[[Sizes], dict[str, Any]]:
    """Return a function from sizes to the configuration."""
    return lambda sizes: _written(kind, architecture, sizes)


def _smollm3_config(sizes: Sizes) -> dict[str, Any]:
    every = sizes["unrotated_layers_every"]
    return {
        **_written("smollm3", "SmolLM3ForCausalLM", sizes),
        "no_rope_layer_interval": every,
        "no_rope_layers": _rotated_layers(sizes["encoder_layers"], every),
    }


def _gemma3_config(sizes: Sizes) -> dict[str, Any]:
    config = _written("gemma3_text", "Gemma3ForCausalLM", sizes)
    return {
        **config,
        "hidden_activation": activation_name(sizes),
        "query_pre_attn_scalar": config["head_dim"],
        "rope_local_base_freq": sizes["local_rotary_base"] or sizes["rotary_base"],
        "sliding_window": sizes["local_attention_window"] // 2 + 1,
        "layer_types": layer_types(
            sizes["encoder_layers"], sizes["global_attention_every"], sizes["first_global_layer"]
        ),
    }


def _state_type(weights: Weights, sizes: Sizes, config: dict[str, Any]) -> None:
    config["torch_dtype"] = dtype_name(weights[TOKENS])  # transformers 5, too, reads this name


def _norms(weights: Weights) -> Iterator[tuple[str, Tensor]]:
    """Yield the norms; their numbers must be floating-point, which conversion checks later."""
    for name, value in list(weights.items()):
        if name.endswith("norm.weight") and value.is_floating_point():
            yield name, value


def _adapt_gemma3(weights: Weights, sizes: Sizes, config: Mapping[str, Any]) -> None:
    """Add the 1 that Gemma adds to the weights of norms when it runs, and put its scale of scores into a norm.

    In single precision, as Gemma does: most weights of norms are near 0, and bfloat16 would round 1 + w to 1.
    """
    head_dim, scalar = config["head_dim"], config["query_pre_attn_scalar"]
    for name, value in _norms(weights):
        weights[name] = 1 + value.float()
        if name.endswith("query_norm.weight") and scalar != head_dim:
            weights[name] *= math.sqrt(head_dim / scalar)


def _restore_gemma3(weights: Weights, sizes: Sizes, config: dict[str, Any]) -> None:
    _state_type(weights, sizes, config)
    for name, value in _norms(weights):
        difference = value.float() - 1
        narrow = difference.to(weights[TOKENS].dtype)
        weights[name] = narrow if torch.equal(narrow.float(), difference) else difference


def _family(
    name: str,
    models: str,
    kind: str,
    sizes: Callable[[Mapping[str, Any]], Sizes],
    config: Callable[[Sizes], dict[str, Any]],
    **others: Any,
) -> Family:
    return Family(
        name=name,
        models=models,
        model_types=(kind,),
        base="model.",
        parameters=EMBEDDING,
        unused=r".*rotary_emb\.inv_freq$",
        tied=("lm_head.weight",),
        sizes=sizes,
        config=config,
        **{"modules": MODULES, "restore": _state_type, **others},
    )


# Whether the output matrix is tied is the default of each family's program.
_UNTIED, _TIED = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}

LLAMA = _family(
    "Llama",
    "SmolLM2, TinyLlama, Llama 3.2",
    "llama",
    _llama_sizes,
    _config_of("llama", "LlamaForCausalLM"),
    defaults=_UNTIED,
)
SMOLLM3 = _family("SmolLM3", "SmolLM3", "smollm3", _smollm3_sizes, _smollm3_config, defaults=_TIED)
QWEN2 = _family(
    "Qwen2", "Qwen2, Qwen2.5", "qwen2", _qwen2_sizes, _config_of("qwen2", "Qwen2ForCausalLM"), defaults=_UNTIED
)
QWEN3 = _family(
    "Qwen3",
    "Qwen3",
    "qwen3",
    _qwen3_sizes,
    _config_of("qwen3", "Qwen3ForCausalLM"),
    modules={**MODULES, **_QUERY_KEY_NORMS},
    defaults=_UNTIED,
)
GEMMA3 = _family(
    "Gemma 3",
    "Gemma 3 text models: 270m, 1b",
    "gemma3_text",
    _gemma3_sizes,
    _gemma3_config,
    modules={**MODULES, **_FOUR_NORMS, **_QUERY_KEY_NORMS},
    adapt=_adapt_gemma3,
    restore=_restore_gemma3,
    defaults=_TIED,
)
LANGUAGE_MODELS = (LLAMA, SMOLLM3, QWEN2, QWEN3, GEMMA3)
