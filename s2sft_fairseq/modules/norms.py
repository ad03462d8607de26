"""The norms of a model: layer norms, or RMSNorm (Zhang and Sennrich, 2019, arXiv 1910.07467)."""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Norms:
    """How the norms of a model are made."""

    eps: float
    bias: bool = True
    """Of layer norms; RMSNorm has none."""
    rms: bool = False

    def make(self, width: int) -> nn.Module:
        """Make one that normalises states (..., width)."""
        if self.rms:
            return nn.RMSNorm(width, eps=self.eps)
        return nn.LayerNorm(width, eps=self.eps, bias=self.bias)
