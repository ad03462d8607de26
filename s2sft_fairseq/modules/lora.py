"""Low-rank adapters (LoRA: Hu et al. 2021, arXiv 2106.09685): a linear layer learns a product of two thin matrices.

R: rank, I: inputs, O: outputs.
"""

import math
from collections.abc import Collection

import torch
from torch import Tensor, nn

from s2sft_fairseq.modules.matmul import linear

ADAPTERS = ("lora_a", "lora_b")
"""Names of the two matrices in a layer."""


class LoRALinear(nn.Module):
    """A frozen linear layer plus a trained product of rank R: ``W x + b + (alpha / R) B A x`` (section 4.1).

    Weight and bias have the same names as in the linear layer.
    """

    def __init__(self, linear: nn.Linear, *, rank: int, alpha: float, dropout: float) -> None:
        """Take over the weight (O, I) and the bias (O,) of a layer. B is zero, so at first the result is the same."""
        super().__init__()
        self.weight, self.bias = linear.weight.requires_grad_(False), linear.bias
        if self.bias is not None:
            self.bias.requires_grad_(False)
        self.scale = alpha / rank
        self.dropout = nn.Dropout(dropout)
        outputs, inputs = self.weight.shape
        self.lora_a = nn.Parameter(self.weight.new_empty(rank, inputs))
        self.lora_b = nn.Parameter(self.weight.new_zeros(outputs, rank))
        # As in the authors' program: variance 1 / (3 I).
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply.

        Shape:
            (..., I) -> (..., O).
        """
        # Scale (..., R), which has the fewest numbers.
        low = linear(self.dropout(x), self.lora_a) * self.scale
        return linear(x, self.weight, self.bias) + linear(low, self.lora_b)

    def merged(self) -> nn.Linear:
        """Return a linear layer that computes the same, without dropout."""
        outputs, inputs = self.weight.shape
        merged = nn.Linear(inputs, outputs, bias=self.bias is not None, device="meta")
        weight = merged_weight(self.weight, self.lora_a, self.lora_b, self.scale)
        merged.weight, merged.bias = nn.Parameter(weight), self.bias
        return merged.train(self.training)


@torch.no_grad()
def merged_weight(weight: Tensor, lora_a: Tensor, lora_b: Tensor, scale: float) -> Tensor:
    """Return ``W + scale B A`` (O, I) in the data type of ``W``, computed in float32 or wider."""
    precision = torch.promote_types(weight.dtype, torch.float32)
    return torch.addmm(weight.to(precision), lora_b.to(precision), lora_a.to(precision), alpha=scale).to(weight.dtype)


def add_lora(model: nn.Module, names: Collection[str], *, rank: int, alpha: float, dropout: float) -> None:
    """Add adapters to the linear layers within a model whose name is in ``names``; in place."""
    for name, child in model.named_children():
        if isinstance(child, nn.Linear) and name in names:
            setattr(model, name, LoRALinear(child, rank=rank, alpha=alpha, dropout=dropout))
        else:
            add_lora(child, names, rank=rank, alpha=alpha, dropout=dropout)


def merge_lora(model: nn.Module) -> None:
    """Replace each layer with adapters by a linear layer that computes the same, one by one; in place."""
    for name, child in model.named_children():
        if isinstance(child, LoRALinear):
            setattr(model, name, child.merged())
        else:
            merge_lora(child)
