"""DeltaLM as a BART of twice the decoder layers, exactly, and back.

A decoder layer of DeltaLM is self-attention, FFN, cross-attention, FFN, each followed by a layer norm. A decoder layer
of BART is self-attention, cross-attention, FFN. Two of BART's layers compute one of DeltaLM's, with sub-layers (Z) that
add nothing:

====================  =======================================  =======================================
BART's layers 2i      self-attention  *K*    Z  *16 g, b*      FFN ``fc3``, ``fc4``  *K*
and 2i + 1            Z  *16 g, b*           cross-attention   FFN ``fc1``, ``fc2``
====================  =======================================  =======================================

A sub-layer Z has weights of 0, but the layer norm after it would normalize its input a second time. The norm before Z
therefore has the small weight K, which makes the variance of its output far smaller than the epsilon of the norm after
Z: that norm then only multiplies, by about 1 / sqrt(epsilon). With K = sqrt(epsilon / 255) the two norms together
multiply by 1/16, and the norm after Z gets the weight 16 g, where g and b are the weight and the bias of DeltaLM's own
norm. 16 is a power of two, so reading g back gives the same bits.

BART's epsilon is always 1e-5. For a DeltaLM with another one, such as BERT's 1e-12, all states are multiplied by a
power of two c, about sqrt(1e-5 / epsilon). The logits do not change, because the matrices that read a state and the
last layer norm are divided by c.

A DeltaLM without a layer norm after the embeddings becomes a Marian in place of a BART. Marian also has a position
table, but it begins with row 0.
"""

import math
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from s2sft_fairseq.checkpoints.conversion import Sizes, Weights, must_be
from s2sft_fairseq.checkpoints.deltalm import COPIES, POSITIONS, TOKENS
from s2sft_fairseq.errors import UserError, shown

EPSILON = 1e-5
"""Epsilon of the layer norms of BART and Marian."""
FACTOR = 16.0
SMALL = math.sqrt(EPSILON / (FACTOR**2 - 1))
"""The weight K of a layer norm before a sub-layer that adds nothing."""
KEY = "s2sft_deltalm"
"""Key in ``config.json`` for settings that BART's configuration does not have."""
ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "relu": "relu"}
"""Ours -> theirs."""

_OFFSETS = {"bart": 2, "marian": 0}  # rows of the position table before the first position
_ARCHITECTURES = {"bart": "BartForConditionalGeneration", "marian": "MarianMTModel"}
_SHARED = "model.shared.weight"
_BIAS = "final_logits_bias"
_COPIES = ("lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")
_ATTENTION = ("q_proj", "k_proj", "v_proj", "out_proj")
_READS = r"\.(q_proj|k_proj|v_proj|fc1|fc3)\.weight$"
_STATES = r"(\.(out_proj|fc2|fc4)\.(weight|bias)|norm(_embedding)?\.(weight|bias)|embed_(tokens|positions)\.weight)$"

# Parts of DeltaLM's decoder layer: the name, the index of the BART layer (of two), and the name there.
_PARTS = (
    ("self_attn", 0, "self_attn"),
    ("self_attn_layer_norm", 0, "encoder_attn_layer_norm"),
    ("fc3", 0, "fc1"),
    ("fc4", 0, "fc2"),
    ("ffn_layer_norm", 1, "self_attn_layer_norm"),
    ("encoder_attn", 1, "encoder_attn"),
    ("encoder_attn_layer_norm", 1, "encoder_attn_layer_norm"),
    ("fc1", 1, "fc1"),
    ("fc2", 1, "fc2"),
    ("final_layer_norm", 1, "final_layer_norm"),
)
_ENLARGED = ("self_attn_layer_norm", "ffn_layer_norm")
_SMALL_NORMS = ((0, "self_attn_layer_norm"), (0, "final_layer_norm"))
_ZERO = ((0, "encoder_attn"), (1, "self_attn"))


def bart_config(sizes: Sizes) -> dict[str, Any]:
    """Return the settings of the architecture in a ``config.json``.

    Args:
        sizes: all sizes, by the names of `DeltaLMConfig`.
    """
    kind = "bart" if sizes["layernorm_embedding"] == "yes" else "marian"
    config: dict[str, Any] = {
        "architectures": [_ARCHITECTURES[kind]],
        "model_type": kind,
        "d_model": sizes["encoder_embed_dim"],
        "max_position_embeddings": sizes["max_positions"],
        "activation_function": ACTIVATIONS[str(sizes["activation_fn"])],
        "scale_embedding": False,
        "tie_word_embeddings": True,
        "is_encoder_decoder": True,
        # CTranslate2's converter needs the first, other programs the second.
        "normalize_before": False,
        "normalize_embedding": kind == "bart",
        "encoder_layers": sizes["encoder_layers"],
        "decoder_layers": 2 * sizes["decoder_layers"],
        KEY: {"layer_norm_eps": sizes["layer_norm_eps"], "scale": _scale(sizes["layer_norm_eps"])},
    }
    for side in ("encoder", "decoder"):
        config[f"{side}_ffn_dim"] = sizes["encoder_ffn_embed_dim"]
        config[f"{side}_attention_heads"] = sizes["encoder_attention_heads"]
    return config


def bart_weights(weights: Mapping[str, Tensor], sizes: Sizes, pad: int) -> Weights:
    """Return the parameters of BART or Marian by the names of transformers, in float32.

    Args:
        weights: the parameters of a `deltalm` model, by its names; copies of the token embedding are ignored.
        sizes: the sizes by the names of `DeltaLMConfig`.
        pad: id of the padding; the first ``pad + 1`` rows of fairseq's position tables belong to no position.
    """
    kind, scale = bart_config(sizes)["model_type"], _scale(sizes["layer_norm_eps"])
    last_norm = f"decoder.layers.{sizes['decoder_layers'] - 1}.final_layer_norm."
    own = {name: value.float() for name, value in weights.items() if name not in COPIES}
    own = {name: _scaled(name, value, scale, last_norm) for name, value in own.items()}
    found: Weights = {_SHARED: own[TOKENS]}
    for name in POSITIONS:
        rows = own[name][pad + 1 :]
        missing = sizes["max_positions"] - len(rows)  # one table of an official checkpoint may be shorter
        found[f"model.{name}"] = nn.functional.pad(rows, (0, 0, _OFFSETS[kind], missing))
    for name, value in own.items():
        if name.startswith(("encoder.layers.", "encoder.layernorm_embedding.", "decoder.layernorm_embedding.")):
            found[f"model.{name}"] = value
    for layer in range(sizes["decoder_layers"]):
        found |= _two_layers(own, layer)
    found[_BIAS] = own[TOKENS].new_zeros(1, len(own[TOKENS]))
    return found


def is_bart(config: Mapping[str, Any]) -> bool:
    """Return whether a ``config.json`` belongs to a BART or a Marian."""
    return config.get("model_type") in _ARCHITECTURES


def read_bart(source: Mapping[str, Tensor], config: Mapping[str, Any], pad: int) -> tuple[Weights, dict[str, Any]]:
    """Return the parameters of the `deltalm` model that `bart_weights` was given, and options not given by shapes.

    Args:
        source: the parameters by the names of transformers.
        config: the ``config.json``.
        pad: id of the padding.

    Raises:
        UserError: if the BART or Marian was not made by `bart_weights`.
    """
    kind, layers = config["model_type"], config.get("decoder_layers")
    named = config.get(KEY)
    found = named if isinstance(named, dict) else {}
    epsilon, scale = (_positive(found.get(name)) for name in ("layer_norm_eps", "scale"))
    if not isinstance(layers, int) or layers < 2 or layers % 2 or epsilon is None or scale is None:
        raise _refusal(kind, f"its config.json has no {KEY}")
    heads, function = config.get("encoder_attention_heads"), config.get("activation_function")
    must_be(config, scale_embedding=False, normalize_before=False, tie_word_embeddings=True)
    must_be(config, decoder_attention_heads=heads)
    if function not in ACTIVATIONS.values():
        known = ", ".join(ACTIVATIONS.values())
        raise UserError(f"the configuration's activation_function must be one of {known}, but is {shown(function)}")
    source = {name: value for name, value in source.items() if name not in _COPIES}
    if lacking := [name for name in _needed(layers) if name not in source]:
        raise _refusal(kind, f"it lacks {lacking[0]}")
    for name, expected in _fixed(layers).items():
        if name in source and not torch.allclose(source[name].float(), torch.tensor(expected), rtol=0.01, atol=0):
            raise _refusal(kind, f"{name} is not {expected:.3g}")  # the tolerance admits 16-bit weights
    weights: Weights = {TOKENS: source[_SHARED]}
    for name in POSITIONS:
        weights[name] = nn.functional.pad(source[f"model.{name}"][_OFFSETS[kind] :], (0, 0, pad + 1, 0))
    for name, value in source.items():
        if name.startswith(("model.encoder.layers.", "model.encoder.layernorm", "model.decoder.layernorm")):
            weights[name.removeprefix("model.")] = value
    for layer in range(layers // 2):
        for part, offset, theirs in _PARTS:
            prefix = f"model.decoder.layers.{2 * layer + offset}.{theirs}."
            for name in [name for name in source if name.startswith(prefix)]:
                value = source[name] / FACTOR if part in _ENLARGED and name.endswith(".weight") else source[name]
                weights[f"decoder.layers.{layer}.{part}.{name.removeprefix(prefix)}"] = value
    last_norm = f"decoder.layers.{layers // 2 - 1}.final_layer_norm."
    weights = {name: _scaled(name, value, 1 / scale, last_norm) for name, value in weights.items()}
    activation = next(ours for ours, theirs in ACTIVATIONS.items() if theirs == function)
    options = {"encoder_attention_heads": heads, "layer_norm_eps": epsilon, "activation_fn": activation}
    return weights, options


def _two_layers(own: Mapping[str, Tensor], layer: int) -> Weights:
    """Return the two layers of BART's decoder that compute one layer of DeltaLM's."""
    found: Weights = {}
    for part, offset, theirs in _PARTS:
        prefix = f"decoder.layers.{layer}.{part}."
        for name, value in own.items():
            if name.startswith(prefix):
                value = value * FACTOR if part in _ENLARGED and name.endswith(".weight") else value
                found[f"model.decoder.layers.{2 * layer + offset}.{theirs}.{name.removeprefix(prefix)}"] = value
    square = own[f"decoder.layers.{layer}.self_attn.q_proj.weight"]
    for offset, norm in _SMALL_NORMS:
        prefix = f"model.decoder.layers.{2 * layer + offset}.{norm}."
        found |= {f"{prefix}weight": torch.full_like(square[0], SMALL), f"{prefix}bias": torch.zeros_like(square[0])}
    for offset, attention in _ZERO:
        for projection in _ATTENTION:
            prefix = f"model.decoder.layers.{2 * layer + offset}.{attention}.{projection}."
            found |= {f"{prefix}weight": torch.zeros_like(square), f"{prefix}bias": torch.zeros_like(square[0])}
    return found


def _scale(epsilon: float) -> float:
    """Return the power of two c by which all states are multiplied."""
    return float(2.0 ** round(math.log2(EPSILON / epsilon) / 2))


def _scaled(name: str, value: Tensor, scale: float, last_norm: str) -> Tensor:
    """Return a parameter scaled so that all states are multiplied by ``scale`` and the logits do not change."""
    if scale == 1:
        return value
    if name.startswith(last_norm) or re.search(_READS, name):
        return value / scale
    return value * scale if re.search(_STATES, name) else value


def _fixed(layers: int) -> dict[str, float]:
    """Return the parameters that are constant in every BART made of a DeltaLM, each with its value."""
    found = {_BIAS: 0.0}
    for layer in range(0, layers, 2):
        for offset, part in _ZERO:
            prefix = f"model.decoder.layers.{layer + offset}.{part}.out_proj."
            found |= {f"{prefix}weight": 0.0, f"{prefix}bias": 0.0}
        for offset, norm in _SMALL_NORMS:
            prefix = f"model.decoder.layers.{layer + offset}.{norm}."
            found |= {f"{prefix}weight": SMALL, f"{prefix}bias": 0.0}
    return found


def _needed(layers: int) -> list[str]:
    names = [_SHARED, *(f"model.{name}" for name in POSITIONS)]
    return [*names, *(name for name in _fixed(layers) if name != _BIAS)]


def _positive(value: Any) -> float | None:
    """Return the value if it is a positive number, else None."""
    is_one = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
    return float(value) if is_one else None


def _refusal(kind: str, reason: str) -> UserError:
    return UserError(
        f"this is a {kind.upper() if kind == 'bart' else kind.capitalize()} whose decoder is not that of a DeltaLM "
        f"({reason}): only those that s2sft export made from a DeltaLM can be converted"
    )
