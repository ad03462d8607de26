"""What the methods of `Seq2Seq` return, and the attention weights of a model."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from s2sft_fairseq.modules.visibility import PackedColumns


@dataclass(frozen=True)
class Hypothesis:
    """A text that a model generated."""

    text: str
    score: float
    """Natural logarithm of its probability, divided as the length penalty says."""
    tokens: list[str]
    """Symbols of the dictionary, the final one included."""
    log_probs: list[float]
    """Natural logarithm of the probability of each token."""


@dataclass(frozen=True)
class Score:
    """How probable a target is, given its source."""

    total: float
    """Natural logarithm of its probability: the sum of `log_probs`."""
    tokens: list[str]
    log_probs: list[float]


@dataclass(frozen=True)
class Attention:
    """What the prediction of each target token attends to."""

    source: list[str]
    """Tokens of the source, special symbols included."""
    target: list[str]
    weights: Tensor
    """Share of its attention that the prediction of a target token gives to a source token (T, S), the mean of all
    heads. The rest goes to the target."""


def attention_weights(model: Any, columns: PackedColumns, layer: int) -> Tensor:
    """Return the attention weights of all tokens of one example (T, T), the mean of all heads.

    T: tokens of the packed example.
    """
    attention, seen = model.layers[layer].attention, []
    hook = attention.register_forward_pre_hook(lambda _, arguments: seen.append(arguments))
    try:
        model.encode(columns)
    finally:
        hook.remove()
    ((x, plan),) = seen
    # (T, 3, h, d) -> (h, T, d) each
    query, key, _ = attention._project(x, plan.rotation).permute(1, 2, 0, 3).float()
    weights = query.new_zeros(len(x), len(x))
    for block in plan.blocks:
        scores = query[:, block.queries] @ key[:, block.keys].transpose(1, 2) / query.size(-1) ** 0.5
        if block.bias is not None:
            scores = scores + block.bias.float()
        weights[block.queries, block.keys] = scores.softmax(-1).mean(0)
    return weights.cpu()
