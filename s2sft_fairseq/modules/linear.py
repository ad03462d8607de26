"""Linear layers that train with the fastest matrix products of the CPU, in float32 or with bfloat16 factors.

R: rows, I: inputs, O: outputs.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from s2sft_fairseq.modules.matmul import LEAST, multiply, operand_type


class Linear(nn.Linear):
    """PyTorch's, with the fast way on CPUs."""

    def forward(self, x: Tensor) -> Tensor:
        """Multiply, (..., I) -> (..., O)."""
        return linear(x, self.weight, self.bias)


def speed_up(model: nn.Module) -> None:
    """Make a `Linear` of every linear layer of PyTorch's within a model, in place; its parameters stay."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply with a weight and add a bias.

    Under autocast to bfloat16 the factors of the product and of its gradients are rounded, and so are these products;
    sums, bias and result stay in float32. What is kept for the backward pass is half as large then.

    Shape:
        x (..., I), weight (O, I), bias (O,) -> (..., O).
    """
    if x.device.type != "cpu" or x.dtype != torch.float32 or torch.compiler.is_compiling():
        return nn.functional.linear(x, weight, bias)
    dtype = operand_type(x)
    if dtype == x.dtype and x.numel() * len(weight) < LEAST:
        return nn.functional.linear(x, weight, bias)
    # (..., I) -> (R, I)
    product: Tensor = _Linear.apply(x.reshape(-1, x.size(-1)), weight, bias, dtype)
    return product.view(*x.shape[:-1], len(weight))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        x, weight = x.to(dtype), weight.to(dtype)
        ctx.save_for_backward(x, weight)
        return multiply(x, weight.t(), bias).float()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        gradient = gradient.contiguous()
        bias_gradient = gradient.sum(dim=0) if needs_bias else None
        gradient = gradient.to(x.dtype)
        x_gradient = multiply(gradient, weight).float() if needs_x else None
        weight_gradient = multiply(gradient.t(), x).float() if needs_weight else None
        return x_gradient, weight_gradient, bias_gradient, None
