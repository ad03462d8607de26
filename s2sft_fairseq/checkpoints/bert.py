"""BERT weights with Hugging Face's names, as parameters of the `unilm` model.

Covers what shares BERT's names: BERT itself, MiniLM, UniLM without fused QKV, and s2s-ft's own files. The position
table is taken as it is, and ``gamma``/``beta`` of old files become ``weight``/``bias``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.errors import UserError

# Their name -> ours. Query, key and value are fused afterwards.
RENAMES = [
    (r"embeddings\.word_embeddings\.", "embeddings.tokens."),
    (r"embeddings\.position_embeddings\.", "embeddings.positions."),
    (r"embeddings\.token_type_embeddings\.", "embeddings.segments."),
    (r"embeddings\.LayerNorm\.", "embeddings.layer_norm."),
    (r"encoder\.layer\.(\d+)\.attention\.self\.(query|key|value)\.", r"layers.\1.attention.\2."),
    (r"encoder\.layer\.(\d+)\.attention\.output\.dense\.", r"layers.\1.attention.output."),
    (r"encoder\.layer\.(\d+)\.attention\.output\.LayerNorm\.", r"layers.\1.attention_layer_norm."),
    (r"encoder\.layer\.(\d+)\.intermediate\.dense\.", r"layers.\1.fc1."),
    (r"encoder\.layer\.(\d+)\.output\.dense\.", r"layers.\1.fc2."),
    (r"encoder\.layer\.(\d+)\.output\.LayerNorm\.", r"layers.\1.final_layer_norm."),
    (r"rel_pos_bias\.", "relative_position."),
    (r"cls\.predictions\.transform\.dense\.", "lm_head.dense."),
    (r"cls\.predictions\.transform\.LayerNorm\.", "lm_head.layer_norm."),
    (r"cls\.predictions\.bias", "lm_head.bias"),
]

# Parts that a generator has no use for: the sentence heads, and copies of the tied output matrix and its bias.
UNUSED = re.compile(r"pooler\.|cls\.seq_relationship\.|cls\.predictions\.decoder|embeddings\.position_ids|crit_mask_lm")


@dataclass
class Conversion:
    """The outcome of a conversion."""

    weights: dict[str, Tensor]
    sizes: dict[str, Any]
    """Sizes by the names of `UnilmConfig`."""
    unused: list[str] = field(default_factory=list)
    """Names in the source that were left out."""
    missing: list[str] = field(default_factory=list)
    """Parameters that the source lacks and that are initialised anew when training starts."""


def convert_bert(source: Mapping[str, Tensor], config: Mapping[str, Any]) -> Conversion:
    """Convert a BERT checkpoint.

    Args:
        source: its tensors by name.
        config: its ``config.json``.

    Raises:
        UserError: listing everything that is missing, unknown or of an unexpected shape.
    """
    weights: dict[str, Tensor] = {}
    unused, problems = [], []
    for name, value in source.items():
        bare = re.sub(r"\.gamma$", ".weight", re.sub(r"\.beta$", ".bias", name.removeprefix("bert.")))
        if UNUSED.match(bare):
            unused.append(name)
            continue
        for pattern, ours in RENAMES:
            renamed, hits = re.subn(f"^{pattern}", ours, bare)
            if hits:
                weights[renamed] = value
                break
        else:
            problems.append(f"{name} is no parameter of BERT")
    try:
        sizes, vocab_size = _sizes(config), config["vocab_size"]
    except KeyError as error:
        raise UserError(f"config.json must have {error.args[0]!r}, but has only {', '.join(sorted(config))}") from None
    for layer in range(sizes["encoder_layers"]):
        for kind in ("weight", "bias"):
            parts = [weights.pop(f"layers.{layer}.attention.{part}.{kind}", None) for part in ("query", "key", "value")]
            if None in parts:
                problems.append(f"encoder.layer.{layer}.attention.self: query, key or value has no {kind}")
            else:
                weights[f"layers.{layer}.attention.qkv.{kind}"] = torch.cat(parts)
    expected = parameter_shapes(sizes, vocab_size)
    missing = sorted(expected.keys() - weights.keys())
    problems += [f"{name} is missing" for name in missing if not name.startswith("lm_head.") and ".qkv." not in name]
    problems += [f"{name} is unexpected: config.json has no such part" for name in sorted(weights.keys() - expected)]
    problems += [
        f"{name} must have the shape {expected[name]}, but has {tuple(weights[name].shape)}"
        for name in sorted(expected.keys() & weights.keys())
        if expected[name] != tuple(weights[name].shape)
    ]
    if problems:
        raise UserError.of(problems, "this is not the BERT checkpoint that its config.json describes:")
    # Cloned, so that what is saved is this tensor alone and not the storage that it may be a view of.
    weights = {name: weights[name].detach().float().clone() for name in sorted(weights)}
    return Conversion(weights, sizes, unused, missing)


def _sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    activations = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu"}
    activation = config.get("hidden_act", "gelu")
    if activation not in activations:
        raise UserError(f"config.json: hidden_act must be one of {', '.join(activations)}, but is {activation!r}")
    return {
        "encoder_layers": config["num_hidden_layers"],
        "encoder_embed_dim": config["hidden_size"],
        "encoder_ffn_embed_dim": config["intermediate_size"],
        "encoder_attention_heads": config["num_attention_heads"],
        "max_positions": config["max_position_embeddings"],
        "num_segments": config.get("type_vocab_size", 2),
        "relative_position_bins": config.get("rel_pos_bins", 0),
        "max_relative_position": config.get("max_rel_pos", 0) or 128,
        "layer_norm_eps": config.get("layer_norm_eps", 1e-12),
        "activation_fn": activations[activation],
    }


def parameter_shapes(sizes: Mapping[str, Any], vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of a `unilm` model of these sizes."""
    width, inner = sizes["encoder_embed_dim"], sizes["encoder_ffn_embed_dim"]
    shapes: dict[str, tuple[int, ...]] = {
        "embeddings.tokens.weight": (vocab_size, width),
        "embeddings.positions.weight": (sizes["max_positions"], width),
        "lm_head.bias": (vocab_size,),
    }
    if sizes["num_segments"]:
        shapes["embeddings.segments.weight"] = (sizes["num_segments"], width)
    if sizes["relative_position_bins"]:
        shapes["relative_position.weight"] = (sizes["encoder_attention_heads"], sizes["relative_position_bins"])
    linear = {"lm_head.dense": (width, width)}
    norms = ["embeddings.layer_norm", "lm_head.layer_norm"]
    for layer in range(sizes["encoder_layers"]):
        prefix = f"layers.{layer}"
        linear[f"{prefix}.attention.qkv"] = (3 * width, width)
        linear[f"{prefix}.attention.output"] = (width, width)
        linear[f"{prefix}.fc1"] = (inner, width)
        linear[f"{prefix}.fc2"] = (width, inner)
        norms += [f"{prefix}.attention_layer_norm", f"{prefix}.final_layer_norm"]
    for name, shape in linear.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name in norms:
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    return shapes
