"""An encoder-decoder as two ONNX graphs: one reads the sources, the other does a decoding step.

N: sentences, K: hypotheses of each, S: source positions, P: tokens of a hypothesis before this step, V: vocabulary,
L: layers of the decoder, H: width; h: heads, d: width of a head.
"""

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from s2sft_fairseq.models.deltalm import DeltaLMModel
from s2sft_fairseq.models.onnx_graph import slot_names, write_onnx

ENCODER = "encoder.onnx"
"""Name of the file of the encoder; the step is in the file that every model folder for onnxruntime has."""


class EncoderGraph(nn.Module):
    """Reads sources, and returns their keys and values for the cross-attention of the decoder."""

    def __init__(self, model: DeltaLMModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> tuple[Tensor, ...]:
        """Read the sources.

        Args:
            tokens: laid-out sources, padded on the right (N, S).

        Returns:
            A mask that is true at padding (N, S), and the keys and values of the sources for each layer of the decoder,
            2 L tensors (N, h, S, d).
        """
        encoder = self.model.encoder
        positions = encoder.padding_idx + torch.arange(1, tokens.size(1) + 1)
        x = _embed(encoder, tokens, positions)
        # (N, S) -> (N, 1, 1, S), for every head and query
        padding = tokens == encoder.padding_idx
        bias = _hiding(padding)
        for layer in encoder.layers:
            attention = layer.self_attn
            attended = _attend(_query(attention, x), *_keys_and_values(attention, x), bias)
            x = layer.self_attn_layer_norm(x + attention.out_proj(_merged(attended)))
            x = layer.final_layer_norm(x + layer.fc2(layer.activation_fn(layer.fc1(x))))
        found: list[Tensor] = []
        for layer in self.model.decoder.layers:
            found += _keys_and_values(layer.encoder_attn, x)
        return padding, *found


class StepGraph(nn.Module):
    """Reads the newest token of each hypothesis, and scores the vocabulary after it."""

    def __init__(self, model: DeltaLMModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, position: Tensor, padding: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        """Score the vocabulary.

        Args:
            tokens: the newest tokens (N, K).
            position: number of tokens before them (1,).
            padding: true at the padding of the sources (N, S).
            states: keys and values of the sources, 2 L tensors (N, h, S, d), and of the earlier tokens, 2 L tensors
                (N, K, h, P, d); both layer after layer.

        Returns:
            Logits (N, K, V), and keys and values including the new tokens, 2 L tensors (N, K, h, P + 1, d).
        """
        decoder, layers = self.model.decoder, self.model.decoder.layers
        of_source, before = states[: 2 * len(layers)], states[2 * len(layers) :]
        x = _embed(decoder, tokens, decoder.padding_idx + 1 + position)
        bias = _hiding(padding)
        kept: list[Tensor] = []
        for index, layer in enumerate(layers):
            # (N, K, H) -> (N, K, h, 1, d): each hypothesis has its own keys
            attention = layer.self_attn
            x = x.unsqueeze(2)
            key, value = (
                torch.cat([old, new], dim=3)
                for old, new in zip(before[2 * index : 2 * index + 2], _keys_and_values(attention, x), strict=True)
            )
            kept += [key, value]
            attended = attention.out_proj(_merged(_attend(_query(attention, x), key, value, None)))
            x = layer.self_attn_layer_norm((x + attended).squeeze(2))
            x = layer.ffn_layer_norm(x + layer.fc4(layer.activation_fn(layer.fc3(x))))
            # (N, K, H) -> (N, h, K, d): all hypotheses share the keys of their source
            attention = layer.encoder_attn
            attended = _attend(_query(attention, x), of_source[2 * index], of_source[2 * index + 1], bias)
            x = layer.encoder_attn_layer_norm(x + attention.out_proj(_merged(attended)))
            x = layer.final_layer_norm(x + layer.fc2(layer.activation_fn(layer.fc1(x))))
        return nn.functional.linear(x, decoder.embed_tokens.weight), *kept


def _embed(side: Any, tokens: Tensor, positions: Tensor) -> Tensor:
    x = side.embed_tokens(tokens) + side.embed_positions.weight[positions]
    normalized: Tensor = x if side.layernorm_embedding is None else side.layernorm_embedding(x)
    return normalized


def _hiding(hidden: Tensor) -> Tensor:
    """Return the bias that hides positions when it is added to scores, (N, S) -> (N, 1, 1, S)."""
    bias = torch.zeros_like(hidden, dtype=torch.float32).masked_fill(hidden, float("-inf"))
    return bias[:, None, None]


def _heads(attention: Any, x: Tensor) -> Tensor:
    # (..., T, H) -> (..., h, T, d)
    split: Tensor = x.unflatten(-1, (attention.num_heads, attention.head_dim))
    return split.transpose(-3, -2)


def _query(attention: Any, x: Tensor) -> Tensor:
    return _heads(attention, attention.q_proj(x))


def _keys_and_values(attention: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    return _heads(attention, attention.k_proj(x)), _heads(attention, attention.v_proj(x))


def _merged(attended: Tensor) -> Tensor:
    # (..., h, T, d) -> (..., T, H)
    return attended.transpose(-3, -2).flatten(-2)


def _attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
    scores = query / math.sqrt(query.size(-1)) @ key.transpose(-2, -1)
    weights = (scores if bias is None else scores + bias).softmax(-1)
    return weights @ value


def write_graphs(model: DeltaLMModel, encoder: Path, step: Path) -> None:
    """Write both graphs of a model in float32, with their weights.

    Raises:
        UserError: if a package is not installed.
    """
    model.float().eval()
    attention, layers = model.decoder.layers[0].self_attn, len(model.decoder.layers)
    heads, head_dim = attention.num_heads, attention.head_dim
    n, k, s, p = 2, 3, 5, 4  # arbitrary sizes of at least 2: these dimensions are dynamic
    names = ("sentences", "hypotheses", "source", "before")
    open_n, open_k, open_s, open_p = (torch.export.Dim(name) for name in names)
    tokens = torch.zeros(n, s, dtype=torch.long)
    of_source = slot_names(layers, "source_")
    write_onnx(EncoderGraph(model), (tokens,), ({0: open_n, 1: open_s},), ["tokens"], ["padding", *of_source], encoder)
    inputs = (
        *(torch.zeros(n, k, dtype=torch.long), torch.tensor([p]), torch.zeros(n, s, dtype=torch.bool)),
        *(torch.zeros(n, heads, s, head_dim) for _ in of_source),
        *(torch.zeros(n, k, heads, p, head_dim) for _ in of_source),
    )
    shapes = (
        *({0: open_n, 1: open_k}, None, {0: open_n, 1: open_s}),
        ({0: open_n, 2: open_s},) * len(of_source) + ({0: open_n, 1: open_k, 3: open_p},) * len(of_source),
    )
    write_onnx(
        StepGraph(model),
        inputs,
        shapes,
        ["tokens", "position", "padding", *of_source, *slot_names(layers)],
        ["logits", *slot_names(layers, "new_")],
        step,
    )
