"""The language model head, tied to the token embedding."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


class LMHead(nn.Module):
    """Dense layer, activation and layer norm, then the token embedding as output matrix, with a bias of its own."""

    def __init__(
        self, *, vocab_size: int, embed_dim: int, activation: Callable[[Tensor], Tensor], layer_norm_eps: float
    ) -> None:
        super().__init__()
        self.dense = nn.Linear(embed_dim, embed_dim)
        self.activation = activation
        self.layer_norm = nn.LayerNorm(embed_dim, eps=layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def forward(self, x: Tensor, token_embedding: Tensor) -> Tensor:
        """Score the vocabulary.

        Shape:
            x (..., H), token_embedding (V, H) -> logits (..., V). H: width, V: vocabulary.
        """
        return nn.functional.linear(self.layer_norm(self.activation(self.dense(x))), token_embedding, self.bias)
