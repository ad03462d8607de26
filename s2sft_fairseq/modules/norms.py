"""The norms of a model: layer norms, or RMSNorm (Zhang and Sennrich, 2019, arXiv 1910.07467)."""

from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class Norms:
    """A factory of the norms of a model."""

    eps: float
    bias: bool = True
    """Whether layer norms have a bias; RMSNorm never has one."""
    rms: bool = False

    def make(self, width: int) -> nn.Module:
        """Return a norm of states (..., width)."""
        if self.rms:
            return nn.RMSNorm(width, eps=self.eps)
        return nn.LayerNorm(width, eps=self.eps, bias=self.bias)
