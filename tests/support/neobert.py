"""NeoBERT (arXiv 2502.19587), written plainly because transformers lacks it: its names, sizes and head layout."""

import json
import math
from pathlib import Path

import torch
from hugging_face import VOCAB_SIZE, write_tokenizer
from safetensors.torch import save_file
from torch import Tensor

LAYERS, WIDTH, HEADS, GIVEN, INNER = 3, 16, 2, 36, 24
CONFIG = {
    **{"model_type": "neobert", "num_hidden_layers": LAYERS, "hidden_size": WIDTH, "num_attention_heads": HEADS},
    **{"intermediate_size": GIVEN, "norm_eps": 1e-6, "vocab_size": VOCAB_SIZE, "pad_token_id": 0, "max_length": 40},
}


def random_weights(seed: int = 0) -> dict[str, Tensor]:
    """Return weights large enough for the logits to depend on each of them."""
    shapes = {"model.encoder.weight": (VOCAB_SIZE, WIDTH), "model.layer_norm.weight": (WIDTH,)}
    for layer in range(LAYERS):
        name = f"model.transformer_encoder.{layer}"
        shapes |= {f"{name}.{norm}.weight": (WIDTH,) for norm in ("attention_norm", "ffn_norm")}
        shapes |= {f"{name}.qkv.weight": (3 * WIDTH, WIDTH), f"{name}.wo.weight": (WIDTH, WIDTH)}
        shapes |= {f"{name}.ffn.w12.weight": (2 * INNER, WIDTH), f"{name}.ffn.w3.weight": (WIDTH, INNER)}
    shapes |= {"decoder.weight": (VOCAB_SIZE, WIDTH), "decoder.bias": (VOCAB_SIZE,)}
    generator = torch.Generator().manual_seed(seed)
    noise = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {name: 1 + 0.2 * x if name.endswith("norm.weight") else 0.3 * x for name, x in noise.items()}


def write_neobert(folder: Path) -> dict[str, Tensor]:
    """Write a folder with the layout of the published one, and return its weights."""
    weights = random_weights()
    write_tokenizer("wordpiece", folder)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return weights


def logits(weights: dict[str, Tensor], tokens: Tensor) -> Tensor:
    """Return the logits (L, V) of one text (L,), computed a head at a time."""
    x = weights["model.encoder.weight"][tokens]
    for layer in range(LAYERS):
        name = f"model.transformer_encoder.{layer}"
        projected = _normed(x, weights[f"{name}.attention_norm.weight"]) @ weights[f"{name}.qkv.weight"].t()
        size, found = WIDTH // HEADS, []
        for head in range(HEADS):
            # The query, key and value of a head are next to each other.
            query, key, value = projected[:, 3 * size * head : 3 * size * (head + 1)].split(size, dim=1)
            scores = _rotated(query) @ _rotated(key).t() / math.sqrt(size)
            found.append(scores.softmax(dim=1) @ value)
        x = x + torch.cat(found, dim=1) @ weights[f"{name}.wo.weight"].t()
        inner = _normed(x, weights[f"{name}.ffn_norm.weight"]) @ weights[f"{name}.ffn.w12.weight"].t()
        gate, up = inner[:, :INNER], inner[:, INNER:]
        x = x + (gate * torch.sigmoid(gate) * up) @ weights[f"{name}.ffn.w3.weight"].t()
    return _normed(x, weights["model.layer_norm.weight"]) @ weights["decoder.weight"].t() + weights["decoder.bias"]


def _normed(x: Tensor, weight: Tensor) -> Tensor:
    return x / (x.pow(2).mean(dim=1, keepdim=True) + CONFIG["norm_eps"]).sqrt() * weight


def _rotated(x: Tensor) -> Tensor:
    """Apply rotary positions: dimensions 2 i and 2 i + 1 of (L, d) are a complex number, times e^(i * angle)."""
    numbers = torch.complex(x[:, 0::2], x[:, 1::2])
    angles = [[place * 10000.0 ** (-2 * i / x.size(1)) for i in range(x.size(1) // 2)] for place in range(len(x))]
    numbers = numbers * torch.exp(1j * torch.tensor(angles))
    return torch.stack([numbers.real, numbers.imag], dim=2).flatten(1)
