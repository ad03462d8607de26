"""The gradient of a token embedding that is the output matrix too, made once.

Both uses of the matrix (V, E) would each get a gradient of its size, which are then added up. But all rows have one
from the output, and the look-up adds to a few of them: what the output leaves, the look-up completes, and hands over as
the only gradient. In the backward pass the output always comes first. V: vocabulary, E: width of the embedding.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class TiedGradient:
    """The gradient of the matrix between the two parts of one backward pass."""

    def __init__(self) -> None:
        self._from_output: Tensor | None = None

    def leave(self, gradient: Tensor) -> None:
        """Keep what the output matrix gets, for the look-up to take."""
        self._from_output = gradient

    def take(self) -> Tensor | None:
        """Return what the output matrix got, None if there was no loss behind it."""
        gradient, self._from_output = self._from_output, None
        return gradient


def tied_embedding(tokens: Tensor, weight: Tensor, padding: int, gradient: TiedGradient) -> Tensor:
    """Look rows up.

    Args:
        tokens: ids (...).
        weight: the matrix (V, E).
        padding: the id whose row gets no gradient from being looked up.
        gradient: where the output leaves its part.

    Returns:
        (..., E).
    """
    return _LookUp.apply(weight, tokens, padding, gradient)


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor, tokens: Tensor, padding: int, gradient: TiedGradient) -> Tensor:
        ctx.save_for_backward(weight, tokens)
        ctx.padding, ctx.tied = padding, gradient
        return weight[tokens]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        weight, tokens = ctx.saved_tensors
        total = ctx.tied.take()
        total = torch.zeros_like(weight) if total is None else total
        of_padding = total[ctx.padding].clone()
        total.index_add_(0, tokens.flatten(), gradient.flatten(0, -2).to(total.dtype))
        total[ctx.padding] = of_padding
        return total, None, None, None
