"""The encoder-only model as an ONNX graph, which onnxruntime runs.

One graph reads the sources and makes the steps of decoding: it reads new tokens of each sentence beside what stands in
the sentence's slots. A source is new tokens with no slots before them. The slots are inputs, and what the new tokens
leave for them are outputs: who keeps it, and who sees it, is up to the caller, as in `modules.incremental_state`.

N: sentences, A: new tokens of each, P: tokens to predict, C: slots, L: layers, V: vocabulary; h: heads, d: of a head.
"""

import logging
import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from s2sft_fairseq.errors import package
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.modules.multi_flow_attention import AttentionPattern, merge_heads
from s2sft_fairseq.modules.positions import Rotation, rotation_at
from s2sft_fairseq.modules.visibility import within_window

INPUTS = ("tokens", "positions", "segments", "predicted", "visible", "seen", "slot_positions")
"""Ahead of the keys and values of each layer."""


def slot_names(layers: int, prefix: str = "") -> list[str]:
    """Return the names of keys and values; of those of new tokens with a prefix."""
    return [f"{prefix}{kind}_{index}" for index in range(layers) for kind in ("keys", "values")]


class Plan(NamedTuple):
    """What the layers of one pattern need to know."""

    of_slots: Tensor
    """Added to the scores against the slots (N, 1 or h, A, C)."""
    of_new: Tensor
    """Added to those of the new tokens against each other (N, 1 or h, A, A)."""
    rotation: Rotation | None


class OnnxGraph(nn.Module):
    """Reads new tokens beside the slots of their sentences."""

    def __init__(self, model: UnilmModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        segments: Tensor,
        predicted: Tensor,
        visible: Tensor,
        seen: Tensor,
        slot_positions: Tensor,
        *slots: Tensor,
    ) -> tuple[Tensor, ...]:
        """Score the vocabulary, and return what the new tokens leave.

        Args:
            tokens: and ``positions``, ``segments``: ids of the new tokens (N, A).
            predicted: numbers of the tokens, of A, at which the vocabulary is scored (P,).
            visible: which of the new tokens each of them sees (N, A, A).
            seen: which slots it sees (N, A, C).
            slot_positions: position ids of what is in the slots (N, C).
            slots: keys and values of layer after layer, 2 L times (N, h, C, d).

        Returns:
            Logits (N, P, V), and the keys and values of the new tokens, 2 L times (N, h, A, d).
        """
        model = self.model
        x = model.embeddings(tokens, positions, segments)
        plans = {
            pattern: self._plan(pattern, positions, visible, slot_positions, seen) for pattern in set(model.patterns)
        }
        new: list[Tensor] = []
        last = len(model.layers) - 1
        for index, (layer, pattern) in enumerate(zip(model.layers, model.patterns, strict=True)):
            plan = plans[pattern]
            attention = layer.attention
            # (N, A, 3, h, d) -> three times (N, h, A, d)
            projected = attention.project(layer.before_attention(x), plan.rotation)
            query, *own = projected.permute(2, 0, 3, 1, 4).unbind(0)
            new += own
            if index == last:
                # Nothing comes of the others' states.
                x, query = x[:, predicted], query[:, :, predicted]
                plan = plan._replace(of_slots=plan.of_slots[:, :, predicted], of_new=plan.of_new[:, :, predicted])
            attended = _attend(query, (slots[2 * index], slots[2 * index + 1]), (own[0], own[1]), plan)
            x = layer.after_attention(x, attention.output(merge_heads(attended)))
        logits = model.lm_head(model.layer_norm(x), model.embeddings.tokens.weight)
        return (logits, *new)

    def _plan(
        self, pattern: AttentionPattern, positions: Tensor, visible: Tensor, slot_positions: Tensor, seen: Tensor
    ) -> Plan:
        biases = []
        for keys, of_keys in ((slot_positions, seen), (positions, visible)):
            if pattern.window:
                of_keys = of_keys & within_window(positions, keys, pattern.window)
            # (N, A, K) -> (N, 1, A, K), for every head
            hidden = ~of_keys.unsqueeze(1)
            relative = self.model.relative_position
            bias = torch.zeros_like(hidden, dtype=torch.float32) if relative is None else relative(positions, keys)
            biases.append(bias.masked_fill(hidden, float("-inf")))
        rotation = None
        if pattern.rotary_base:
            rotation = rotation_at(positions, pattern.head_dim, pattern.rotary_base, torch.float32)
        return Plan(biases[0], biases[1], rotation)


def _attend(query: Tensor, slots: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], plan: Plan) -> Tensor:
    """Attend to slots and new tokens in one softmax, without joining their keys: that would copy all slots.

    Shape:
        query (N, h, A, d) -> the same.
    """
    query = query / math.sqrt(query.size(-1))
    of_slots = query @ slots[0].transpose(2, 3) + plan.of_slots
    of_new = query @ own[0].transpose(2, 3) + plan.of_new
    weights = torch.cat([of_slots, of_new], dim=-1).softmax(-1)
    count = slots[0].size(2)
    return weights[..., :count] @ slots[1] + weights[..., count:] @ own[1]


def write_graph(model: UnilmModel, file: Path) -> None:
    """Write the graph of a model in float32, with its weights.

    Raises:
        UserError: if a package is not installed.
    """
    model = model.float().eval()
    layers, heads, width = len(model.layers), model.cfg.encoder_attention_heads, model.cfg.encoder_embed_dim
    n, a, p, c = 2, 5, 3, 7  # any sizes from 2 on: they stay open
    ids = torch.zeros(n, a, dtype=torch.long)
    inputs = (
        # A tensor for each: one that comes twice would be one input.
        *(ids, ids + torch.arange(a), ids.clone(), torch.arange(p)),
        *(torch.ones(n, a, a, dtype=torch.bool), torch.ones(n, a, c, dtype=torch.bool)),
        torch.arange(c).expand(n, -1).contiguous(),
        *(torch.zeros(n, heads, c, width // heads) for _ in range(2 * layers)),
    )
    open_n, open_a, open_p, open_c = (torch.export.Dim(name) for name in ("sentences", "new", "predicted", "slots"))
    of_ids = {0: open_n, 1: open_a}
    shapes = (
        *(of_ids, of_ids, of_ids, {0: open_p}),
        *({0: open_n, 1: open_a, 2: open_a}, {0: open_n, 1: open_a, 2: open_c}, {0: open_n, 1: open_c}),
        ({0: open_n, 2: open_c},) * (2 * layers),
    )
    write_onnx(
        OnnxGraph(model),
        inputs,
        shapes,
        [*INPUTS, *slot_names(layers)],
        ["logits", *slot_names(layers, "new_")],
        file,
    )


def write_onnx(
    graph: nn.Module,
    inputs: tuple[Tensor, ...],
    shapes: tuple[Any, ...],
    input_names: Sequence[str],
    output_names: Sequence[str],
    file: Path,
) -> None:
    """Write a module as an ONNX graph, with its weights.

    Args:
        graph: the module.
        inputs: an example of each of its inputs.
        shapes: which of their dimensions stay open, as ``torch.export`` takes it.
        input_names: their names.
        output_names: of its outputs.
        file: to write.

    Raises:
        UserError: if a package is not installed.
    """
    for name in ("onnx", "onnxscript"):
        package(name, "--format onnx")
    for name in ("onnx_ir", "onnxscript", "torch.onnx"):
        logging.getLogger(name).setLevel(logging.ERROR)  # they tell of every constant
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that axes of one size share their names
        torch.onnx.export(
            graph,
            inputs,
            str(file),
            input_names=list(input_names),
            output_names=list(output_names),
            dynamic_shapes=shapes,
            dynamo=True,
            external_data=True,
            verbose=False,
        )
