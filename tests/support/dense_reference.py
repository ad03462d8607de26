"""The model, computed in the plainest way: every query scores every key, and the visibility rule is a Python loop.

It is written from the text of the rule; it uses the weights of the model and nothing of the package's attention.
Sequences come one by one and without padding.
"""

import math
from functools import partial

import numpy as np
import torch
from torch import Tensor

from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig
from s2sft_fairseq.objectives.packing import PackedExamples


def sees(query_step: int, query_group: int, key_step: int, key_group: int) -> bool:
    """Return whether a query sees a key; group 0 is content, a group above 0 placeholders."""
    if key_group > 0:
        return query_group > 0 and query_group == key_group
    if query_group > 0:
        return key_step < query_step
    return key_step <= query_step


def visibility_matrix(example: PackedExamples, *, causal: bool = False) -> np.ndarray:
    """Return which key (column) each query (row) of an example sees, boolean (L, L).

    With a causal context its tokens become known one after the other, the last of them in step 0.
    """
    steps = np.concatenate([block.step for block in example]).tolist()
    if causal:
        length = len(example[0].step)
        steps[:length] = range(1 - length, 1)
    groups = np.concatenate([block.group for block in example]).tolist()
    length = len(steps)
    matrix = np.zeros((length, length), dtype=bool)
    for query in range(length):
        for key in range(length):
            matrix[query, key] = sees(steps[query], groups[query], steps[key], groups[key])
    return matrix


def bucket(distance: int, num_bins: int, max_distance: int) -> int:
    """Return T5's bin of the key's position minus the query's, in double precision."""
    half = num_bins // 2
    side = half if distance > 0 else 0
    distance = abs(distance)
    exact = half // 2
    if distance < exact:
        return side + distance
    # Rounded at the twelfth digit, so that a bin that begins at an integer distance begins exactly there.
    further = round(math.log(distance / exact) / math.log(max_distance / exact) * (half - exact), 12)
    return side + min(exact + math.floor(further), half - 1)


def relative_row(distance: int, buckets: int, max_distance: int) -> int:
    """Return DeBERTa's row of the query's position minus the key's; beyond buckets / 2, distances are logarithmic."""
    span, middle = buckets or max_distance, buckets // 2
    if buckets and abs(distance) > middle:
        # Rounded at the twelfth digit, so that a bucket that ends at an integer distance ends exactly there.
        further = math.log(abs(distance) / middle) / math.log((max_distance - 1) / middle) * (middle - 1)
        distance = (1 if distance > 0 else -1) * (middle + math.ceil(round(further, 12)))
    return min(max(distance + span, 0), 2 * span - 1)


def dense_states(model: UnilmModel, example: PackedExamples) -> Tensor:
    """Return the states of the last layer (L, H) of one example without padding."""
    token, position, segment = (
        torch.from_numpy(np.concatenate([getattr(block, name) for block in example]))
        for name in ("token", "position", "segment")
    )
    cfg, embeddings = model.cfg, model.embeddings
    x = embeddings.tokens.weight[token] * cfg.embedding_scale
    if embeddings.positions is not None:
        x = x + embeddings.positions.weight[position]
    if embeddings.segments is not None:
        x = x + embeddings.segments.weight[segment]
    x = embeddings.layer_norm(x)
    if cfg.embedding_dim:
        x = embeddings.projection(x)

    visible, places = visibility_matrix(example, causal=cfg.source_visibility == "causal"), position.tolist()
    bias = torch.zeros(cfg.encoder_attention_heads, *visible.shape, dtype=x.dtype)
    relative = None
    if cfg.disentangled_attention != "none":
        table = model.relative_position.embedding.weight
        if cfg.disentangled_norm == "layer_norm":
            table = model.relative_position.layer_norm(table)
        buckets, furthest = cfg.disentangled_buckets, cfg.max_relative_position
        rows = [[relative_row(query - key, buckets, furthest) for key in places] for query in places]
        relative = (table, torch.tensor(rows), cfg)
    elif model.relative_position is not None:
        bins, furthest = cfg.relative_position_bins, cfg.max_relative_position
        table = torch.tensor([[bucket(key - query, bins, furthest) for key in places] for query in places])
        bias = bias + model.relative_position.weight[:, table]
    for index, layer in enumerate(model.layers):
        allowed, base, scaling = visible, cfg.rotary_base, cfg.rotary_scaling
        if index % cfg.global_attention_every != cfg.first_global_layer:
            base, scaling = cfg.local_rotary_base or base, ""
            if cfg.local_attention_window:
                reach = cfg.local_attention_window // 2
                near = np.array([[query - reach <= key <= query + reach for key in places] for query in places])
                allowed = visible & near
        if index + 1 in range(0, len(model.layers) + 1, cfg.unrotated_layers_every or len(model.layers) + 1):
            base = 0.0
        attend = partial(
            _attend,
            layer.attention,
            allowed=torch.from_numpy(allowed),
            bias=bias,
            places=places,
            base=base,
            scaling=scaling,
            relative=relative,
        )
        if cfg.layer_norm_position == "both":
            first = index == 0 and cfg.embedding_norm == "yes"
            x = x + layer.attention_output_norm(attend(x if first else layer.attention_layer_norm(x)))
            x = x + layer.ffn_output_norm(_feed_forward(layer, layer.final_layer_norm(x), cfg.feed_forward))
        elif cfg.layer_norm_position == "pre":
            first = index == 0 and cfg.embedding_norm == "yes"
            x = x + attend(x if first else layer.attention_layer_norm(x))
            x = x + _feed_forward(layer, layer.final_layer_norm(x), cfg.feed_forward)
        else:
            x = layer.attention_layer_norm(x + attend(x))
            x = layer.final_layer_norm(x + _feed_forward(layer, x, cfg.feed_forward))
    return x if cfg.layer_norm_position == "post" else model.layer_norm(x)


def _feed_forward(layer: torch.nn.Module, x: Tensor, kind: str) -> Tensor:
    hidden = layer.fc1(x)
    if kind == "gated":
        half = hidden.size(1) // 2
        return layer.fc2(layer.activation(hidden[:, :half]) * hidden[:, half:])
    return layer.fc2(layer.activation(hidden))


def slowed(frequency: float, scaling: str) -> float:
    """Return a scaled frequency of a rotation, by its wave length as in Llama's program."""
    if not scaling:
        return frequency
    kind, *numbers = scaling.split(":")
    factor, *others = (float(each) for each in numbers)
    if kind == "linear":
        return frequency / factor
    low, high, original = others
    wave = 2 * math.pi / frequency
    if wave < original / high:
        return frequency
    if wave > original / low:
        return frequency / factor
    smooth = (original / wave - low) / (high - low)
    return (1 - smooth) * frequency / factor + smooth * frequency


def turned(x: Tensor, places: list[int], base: float, scaling: str = "") -> Tensor:
    """Apply rotary positions: dimensions i and i + d / 2 of (L, d) are a complex number, times e^(i * angle)."""
    half = x.size(1) // 2
    numbers = torch.complex(x[:, :half], x[:, half:])
    angles = [[place * slowed(base ** (-i / half), scaling) for i in range(half)] for place in places]
    numbers = numbers * torch.exp(1j * torch.tensor(angles, dtype=x.dtype))
    return torch.cat([numbers.real, numbers.imag], dim=1)


def _attend(
    attention: torch.nn.Module,
    x: Tensor,
    *,
    allowed: Tensor,
    bias: Tensor,
    places: list[int],
    base: float,
    scaling: str,
    relative: tuple[Tensor, Tensor, UnilmConfig] | None,
) -> Tensor:
    groups = attention.num_heads // attention.group_size
    size = attention.qkv.out_features // (attention.num_heads + 2 * groups)
    width, shared = attention.num_heads * size, groups * size
    query, key, value = attention.qkv(x).split((width, shared, shared), dim=1)
    heads_of_a_key = width // shared
    heads = []
    for head in range(attention.num_heads):
        of_head = slice(head * size, (head + 1) * size)
        of_key = slice(head // heads_of_a_key * size, (head // heads_of_a_key + 1) * size)
        queries, keys = query[:, of_head], key[:, of_key]
        if attention.query_norm is not None:
            queries = _scaled_to_one(queries, attention.query_norm)
            keys = _scaled_to_one(keys, attention.key_norm)
        if base:
            queries, keys = turned(queries, places, base, scaling), turned(keys, places, base, scaling)
        products, number = queries @ keys.t(), 1
        if relative is not None:
            more, number = _disentangled(attention, queries, keys, of_head, *relative)
            products = products + more
        scores = products / math.sqrt(number * size) + bias[head]
        exponents = torch.where(allowed, scores, float("-inf")).softmax(dim=1)
        heads.append(exponents @ value[:, of_key])
    return attention.output(torch.cat(heads, dim=1))


def _scaled_to_one(x: Tensor, norm: torch.nn.Module) -> Tensor:
    return x / (x.square().mean(dim=1, keepdim=True) + norm.eps).sqrt() * norm.weight


def _disentangled(
    attention: torch.nn.Module,
    queries: Tensor,
    keys: Tensor,
    of_head: slice,
    table: Tensor,
    rows: Tensor,
    cfg: UnilmConfig,
) -> tuple[Tensor, int]:
    """Return a head's products (L, L) with relative positions, pair by pair, and the number of all products."""
    width, kind = table.size(1), cfg.disentangled_attention
    of_query, of_key, _ = attention.qkv(table).split(width, dim=1)
    if cfg.disentangled_projections == "own":
        of_query = attention.position_query(table) if kind in ("p2c", "both") else of_query
        of_key = attention.position_key(table) if kind in ("c2p", "both") else of_key
    total, number = torch.zeros(len(queries), len(keys), dtype=queries.dtype), 1
    if kind in ("c2p", "both"):
        total = total + (queries.unsqueeze(1) * of_key[rows][..., of_head]).sum(-1)
        number += 1
    if kind in ("p2c", "both"):
        total = total + (keys.unsqueeze(0) * of_query[rows][..., of_head]).sum(-1)
        number += 1
    return total, number
