"""Dropout, fast on CPUs too.

PyTorch draws a number for each element one by one and keeps the mask in float32. Here four elements share one 64-bit
number, and what is kept for the backward pass are its 16 bits for each: on two cores a fifth of the time, half of the
memory. An element is dropped with the probability p rounded to 1/65536, in 16-bit types to what they can tell apart.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_SMALLEST = -(1 << 63)
_LEVELS, _LOWEST = 1 << 16, -(1 << 15)


def draw_noise(like: Tensor) -> Tensor:
    """Draw uniform 16-bit noise, int16 in the shape of a tensor, from PyTorch's generator."""
    count = like.numel()
    noise = torch.empty(-(-count // 4), dtype=torch.int64).random_(_SMALLEST, None)
    return noise.view(torch.int16)[:count].view(like.shape)


def drop(x: Tensor, noise: Tensor, probability: float) -> Tensor:
    """Set to zero the elements whose noise falls into the lowest share; nothing is scaled."""
    threshold = _LOWEST + round(probability * _LEVELS) - 0.5
    # The backward pass of ReLU is the one vectorised kernel that selects by a comparison.
    return torch.ops.aten.threshold_backward(x, noise.to(x.dtype), threshold)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        noise = draw_noise(x)
        ctx.save_for_backward(noise)
        ctx.probability = probability
        return drop(x, noise, probability).mul_(1 / (1 - probability))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (noise,) = ctx.saved_tensors
        return drop(gradient, noise, ctx.probability).mul_(1 / (1 - ctx.probability)), None


class Dropout(nn.Dropout):
    """PyTorch's, with the fast way on CPUs."""

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements in training, and scale up the others, (...) -> (...)."""
        if self.training and 0 < self.p < 1 and x.device.type == "cpu" and not torch.compiler.is_compiling():
            return _Dropout.apply(x, self.p)
        return super().forward(x)
