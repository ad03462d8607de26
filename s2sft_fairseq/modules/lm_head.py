"""The language model head, tied to the token embedding."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class LMHead(nn.Module):
    """Dense layer, activation and layer norm, then the token embedding as output matrix, with a bias of its own."""

    def __init__(
        self,
        *,
        vocab_size: int,
        embed_dim: int,
        token_dim: int,
        activation: Callable[[Tensor], Tensor],
        layer_norm_eps: float,
        bias: bool,
    ) -> None:
        """Make the head; without ``bias`` only the output has one."""
        super().__init__()
        self.dense = nn.Linear(embed_dim, token_dim, bias=bias)
        self.activation = activation
        self.layer_norm = nn.LayerNorm(token_dim, eps=layer_norm_eps, bias=bias)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, x: Tensor, token_embedding: Tensor) -> Tensor:
        """Score the vocabulary.

        Shape:
            x (..., H), token_embedding (V, E) -> logits (..., V). H: width of the layers, E: of the embedding,
            V: vocabulary.
        """
        return nn.functional.linear(self.layer_norm(self.activation(self.dense(x))), token_embedding, self.bias)
