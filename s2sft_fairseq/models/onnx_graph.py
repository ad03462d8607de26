"""The encoder-only model as an ONNX graph, for onnxruntime.

One graph both reads the sources and does the decoding steps: it reads new tokens of each sentence, which attend to each
other and to the sentence's slots. A source is read as new tokens without slots. The slots are inputs, and the keys and
values of the new tokens are outputs. The caller stores them and decides who sees them, see `modules.incremental_state`.

N: sentences, A: new tokens of each, P: tokens to predict, C: slots, L: layers, V: vocabulary; h: heads, d: width of a
head.
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
from s2sft_fairseq.models.unilm_config import width_of_head
from s2sft_fairseq.modules.multi_flow_attention import AttentionPattern, merge_heads
from s2sft_fairseq.modules.positions import Rotation
from s2sft_fairseq.modules.visibility import within_window

INPUTS = ("tokens", "positions", "segments", "predicted", "visible", "seen", "slot_positions")
"""Names of the inputs before the keys and values of each layer."""


def slot_names(layers: int, prefix: str = "") -> list[str]:
    """Return the names of the keys and values of all layers; a prefix distinguishes those of new tokens."""
    return [f"{prefix}{kind}_{index}" for index in range(layers) for kind in ("keys", "values")]


class Plan(NamedTuple):
    """The biases and the rotation that all layers of one attention pattern share."""

    of_slots: Tensor
    """Added to the scores of the slots (N, 1 or h, A, C)."""
    of_new: Tensor
    """Added to the scores of the new tokens (N, 1 or h, A, A)."""
    rotation: Rotation | None


class OnnxGraph(nn.Module):
    """Reads new tokens, which attend to each other and to the slots of their sentences."""

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
        """Score the vocabulary, and return the keys and values of the new tokens.

        Args:
            tokens: ids of the new tokens (N, A).
            positions: their position ids (N, A).
            segments: their segment ids (N, A).
            predicted: indices of the new tokens at which the vocabulary is scored (P,).
            visible: which new tokens each new token sees (N, A, A).
            seen: which slots each new token sees (N, A, C).
            slot_positions: position ids of the slots (N, C).
            slots: keys and values of the slots, layer after layer, 2 L tensors (N, h, C, d).

        Returns:
            Logits (N, P, V), and the keys and values of the new tokens, 2 L tensors (N, h, A, d).
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
                # The other states of the last layer are not used.
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
        return Plan(biases[0], biases[1], pattern.rotation(positions, torch.float32))


def _attend(query: Tensor, slots: tuple[Tensor, Tensor], own: tuple[Tensor, Tensor], plan: Plan) -> Tensor:
    """Attend to slots and new tokens in one softmax, without concatenating their keys, which would copy all slots.

    Shape:
        query (N, h, A, d) -> (N, h, A, d).
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
    layers, heads, head_dim = len(model.layers), model.cfg.encoder_attention_heads, width_of_head(model.cfg)
    n, a, p, c = 2, 5, 3, 7  # arbitrary sizes of at least 2: these dimensions are dynamic
    ids = torch.zeros(n, a, dtype=torch.long)
    inputs = (
        # A separate tensor for each input: the same tensor twice would become one input.
        *(ids, ids + torch.arange(a), ids.clone(), torch.arange(p)),
        *(torch.ones(n, a, a, dtype=torch.bool), torch.ones(n, a, c, dtype=torch.bool)),
        torch.arange(c).expand(n, -1).contiguous(),
        *(torch.zeros(n, heads, c, head_dim) for _ in range(2 * layers)),
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
        inputs: an example of each input.
        shapes: the dynamic dimensions of the inputs, as ``torch.export`` takes them.
        input_names: names of the inputs.
        output_names: names of the outputs.
        file: the file to write.

    Raises:
        UserError: if a package is not installed.
    """
    for name in ("onnx", "onnxscript"):
        package(name, "--format onnx")
    for name in ("onnx_ir", "onnxscript", "torch.onnx"):
        logging.getLogger(name).setLevel(logging.ERROR)  # they log every constant
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch warns that axes of one size share their names
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
