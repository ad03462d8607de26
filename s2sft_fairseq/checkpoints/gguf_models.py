"""The language models of GGUF files, as configurations and tensors by Hugging Face's names.

The families of `s2sft_fairseq.checkpoints.families` read them then. llama.cpp stores some tensors in another form: the
rows of queries and keys of Llama and SmolLM3 are permuted, so that dimensions that rotate together are neighbors; the
weights of Gemma's norms hold the 1 that its program adds; the rotation of Llama 3.1 is a tensor of factors.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.checkpoints.conversion import MOST_LAYERS
from s2sft_fairseq.checkpoints.gguf_file import GgufFile
from s2sft_fairseq.errors import UserError, shown

_MODEL_TYPES = {
    "llama": "llama",
    "smollm3": "smollm3",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3": "gemma3_text",
}
"""Architectures of GGUF, and their ``model_type`` in Hugging Face's configurations."""
_PERMUTED = ("llama", "smollm3")
_SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
"""Keys of GGUF, after the architecture, and Hugging Face's settings."""
_WITHOUT_POSITIONS_EVERY = 4  # of SmolLM3, whose files do not say it
_GLOBAL_EVERY = 6  # of Gemma 3
_LOCAL_BASE = 10000.0  # of the rotation of Gemma 3's local layers
_MAIN = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA = {
    **_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_ROTATION = "rope_freqs.weight"
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
"""The settings of the rotation of Llama 3.1 and 3.2, of which files hold only the resulting factors."""


def read_gguf(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a file by Hugging Face's names, and its configuration.

    Each tensor is dequantized alone, so that no more memory is needed than for the model in float32.

    Raises:
        UserError: the file is damaged, of an unknown architecture, or has tensors that do not belong to it.
    """
    file = GgufFile(path)
    config = configuration(file)
    architecture = str(file.metadata["general.architecture"])
    names = _names(architecture, config["num_hidden_layers"])
    shapes = _shapes(config)
    problems = []
    for name, tensor in file.tensors.items():
        if name == _ROTATION:
            continue
        if name not in names:
            problems.append(f"{shown(name)} is no tensor of {architecture}")
        elif name.startswith("blk.") and (needed := shapes[_part(name)]) != tensor.shape:
            problems.append(f"{name} must have the shape {needed}, as the metadata say, but has {tensor.shape}")
    if problems:
        raise UserError.of((f"{path}: {problem}" for problem in problems), f"{path} is damaged or unknown:", most=10)
    weights = {}
    for name in file.tensors:
        if name != _ROTATION:
            weights[names[name]] = _restored(file.read(name), name, architecture, config)
    return weights, config


def configuration(file: GgufFile) -> dict[str, Any]:
    """Return the configuration of a model in Hugging Face's settings.

    Raises:
        UserError: the architecture is unknown, or settings are missing or of wrong types.
    """
    stated = file.metadata.get("general.architecture")
    architecture = str(stated)
    if architecture not in _MODEL_TYPES:
        known = ", ".join(_MODEL_TYPES)
        raise UserError(f"{file.path}: general.architecture must be one of {known}, but is {shown(stated)}")
    settings = _Settings(file, architecture)
    config: dict[str, Any] = {"model_type": _MODEL_TYPES[architecture]}
    config |= {theirs: settings.whole(ours) for ours, theirs in _SIZES.items()}
    heads = config["num_attention_heads"]
    config["num_key_value_heads"] = settings.whole("attention.head_count_kv", heads)
    config["head_dim"] = settings.whole("attention.key_length", max(1, config["hidden_size"] // max(1, heads)))
    config["rms_norm_eps"] = settings.number("attention.layer_norm_rms_epsilon")
    config["tie_word_embeddings"] = "output.weight" not in file.tensors
    config["attention_bias"] = "blk.0.attn_q.bias" in file.tensors
    rotation = _rotation(file, settings, config)
    config["hidden_act"] = "silu"
    if (table := file.tensors.get("token_embd.weight")) is not None:
        config["vocab_size"] = table.shape[0]
    for role in ("bos", "eos", "pad"):
        named = {"pad": "padding"}.get(role, role)
        number = file.metadata.get(f"tokenizer.ggml.{named}_token_id")
        if type(number) is int:
            config[f"{role}_token_id"] = number
    settings.must_be("attention.value_length", config["head_dim"])
    settings.must_be("rope.dimension_count", config["head_dim"])
    settings.raise_problems()
    if architecture == "gemma3":
        return _gemma(config, settings, rotation)
    if architecture == "smollm3":
        layers = range(1, config["num_hidden_layers"] + 1)
        config["no_rope_layers"] = [int(layer % _WITHOUT_POSITIONS_EVERY > 0) for layer in layers]
        config["no_rope_layer_interval"] = _WITHOUT_POSITIONS_EVERY
    config["rope_parameters"] = rotation
    return config


class _Settings:
    """The metadata of an architecture; problems are collected."""

    def __init__(self, file: GgufFile, architecture: str) -> None:
        self._file, self._architecture = file, architecture
        self._problems: list[str] = []

    def get(self, key: str) -> Any:
        """Return a value, or None."""
        return self._file.metadata.get(f"{self._architecture}.{key}")

    def whole(self, key: str, default: int | None = None) -> int:
        """Return a whole number above 0."""
        found = default if (value := self.get(key)) is None else value
        most = MOST_LAYERS if key == "block_count" else 2**31 - 1
        if type(found) is int and 0 < found <= most:
            return found
        self._problems.append(f"{self._architecture}.{key} must be between 1 and {most:,}, but is {shown(found)}")
        return 1

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number above 0."""
        found = default if (value := self.get(key)) is None else value
        if isinstance(found, int | float) and type(found) is not bool and 0 < found < math.inf:
            return float(found)
        self._problems.append(f"{self._architecture}.{key} must be a number above 0, but is {shown(found)}")
        return 1.0

    def must_be(self, key: str, *values: Any) -> None:
        """Require one of some values of a setting, if it is stated."""
        if (found := self.get(key)) is not None and found not in values:
            self._problems.append(f"{self._architecture}.{key} must be {values[0]}, but is {shown(found)}")

    def raise_problems(self) -> None:
        """Raise the collected problems, if there are any."""
        if self._problems:
            path = self._file.path
            raise UserError.of(f"{path}: {problem}" for problem in self._problems)


def _rotation(file: GgufFile, settings: _Settings, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``rope_parameters`` of the layers, of Gemma's global ones."""
    base = {"rope_theta": settings.number("rope.freq_base", 10000.0)}
    settings.must_be("rope.scaling.type", "none", "linear")
    if settings.get("rope.scaling.type") == "linear":
        return {"rope_type": "linear", "factor": settings.number("rope.scaling.factor"), **base}
    if _ROTATION not in file.tensors:
        return {"rope_type": "default", **base}
    factors = file.read(_ROTATION).double().flatten()
    found = {"rope_type": "llama3", "factor": round(float(factors[-1]), 4), **_LLAMA3, **base}
    expected = _factors(found, config["head_dim"])
    if len(factors) != len(expected) or not torch.allclose(factors, expected, rtol=1e-3):
        raise UserError(f"{file.path}: {_ROTATION} must be that of Llama 3.1 or 3.2, but is another")
    return found


def _factors(parameters: Mapping[str, Any], head_dim: int) -> Tensor:
    """Return by how much the rotation of Llama 3.1 slows down each frequency.

    Returns:
        (d / 2), float64; d: width of a head.
    """
    low, high = parameters["low_freq_factor"], parameters["high_freq_factor"]
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    waves = 2 * math.pi * parameters["rope_theta"] ** exponents
    turns = parameters["original_max_position_embeddings"] / waves
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    return 1 / ((1 - smooth) / parameters["factor"] + smooth)


def _gemma(config: dict[str, Any], settings: _Settings, rotation: dict[str, Any]) -> dict[str, Any]:
    """Return the configuration of a Gemma 3."""
    layers = range(1, config["num_hidden_layers"] + 1)
    window = settings.whole("attention.sliding_window")
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        settings.must_be(key, 0.0)
    settings.raise_problems()
    local = {"rope_type": "default", "rope_theta": settings.number("rope.freq_base_swa", _LOCAL_BASE)}
    return {
        **config,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": window,
        "layer_types": ["sliding_attention" if layer % _GLOBAL_EVERY else "full_attention" for layer in layers],
        "query_pre_attn_scalar": config["head_dim"],
        "rope_parameters": {"full_attention": rotation, "sliding_attention": local},
    }


def _names(architecture: str, num_layers: int) -> dict[str, str]:
    """Return the names of an architecture's tensors in GGUF, and Hugging Face's."""
    parts = _GEMMA if architecture == "gemma3" else _LAYER
    pairs = dict(_MAIN)
    for layer in range(num_layers):
        pairs |= {f"blk.{layer}.{ours}": f"model.layers.{layer}.{theirs}" for ours, theirs in parts.items()}
    return {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in pairs.items() for kind in ("weight", "bias")}


def _part(name: str) -> str:
    """Return the name of a layer's tensor without the number of the layer."""
    return name.split(".", 2)[2]


def _shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer's tensors by their names after ``blk.N.``."""
    width, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    matrices = {
        "attn_q": (queries, width),
        "attn_k": (keys, width),
        "attn_v": (keys, width),
        "attn_output": (width, queries),
        "ffn_gate": (inner, width),
        "ffn_up": (inner, width),
        "ffn_down": (width, inner),
    }
    norms = dict.fromkeys(("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"), (width,))
    norms |= dict.fromkeys(("attn_q_norm", "attn_k_norm"), (head,))
    shapes: dict[str, tuple[int, ...]] = {**matrices, **norms}
    weights = {f"{name}.weight": shape for name, shape in shapes.items()}
    return weights | {f"{name}.bias": shape[:1] for name, shape in shapes.items()}


def _restored(value: Tensor, name: str, architecture: str, config: Mapping[str, Any]) -> Tensor:
    """Return a tensor in the form that Hugging Face's programs expect."""
    part = name.rpartition(".")[0].rpartition(".")[2]
    if architecture == "gemma3" and part.endswith("norm"):
        return value - 1
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    if architecture in _PERMUTED and part in heads:
        # (h d, ...) -> (h, d / 2, 2, ...) -> (h, 2, d / 2, ...)
        pairs = value.view(heads[part], -1, 2, *value.shape[1:])
        return pairs.transpose(1, 2).reshape(value.shape)
    return value
