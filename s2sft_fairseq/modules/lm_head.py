"""The language model head, tied to the token embedding."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from s2sft_fairseq.modules.packed_linear import pack_weight

LARGEST_PACKED = 1 << 30
"""Bytes: a larger token embedding is not copied. That of XLM-RoBERTa large has 0.95 GiB."""


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
        self.output: nn.Module | None = None

    def pack(self, token_embedding: Tensor, *, quantize: bool = False) -> None:
        """Multiply from now on with a packed copy of the token embedding (V, E), for inference.

        The embedding itself stays for what it embeds, so this takes its memory once more, with ``quantize`` a quarter
        of that. Where it is too large, or there are no packed kernels, nothing changes.
        """
        if token_embedding.nbytes <= LARGEST_PACKED:
            self.output = pack_weight(token_embedding, self.bias, quantize=quantize)

    def features(self, x: Tensor) -> Tensor:
        """Return what the output matrix multiplies, (..., H) -> (..., E)."""
        return self.layer_norm(self.activation(self.dense(x)))

    def forward(self, x: Tensor, token_embedding: Tensor) -> Tensor:
        """Score the vocabulary.

        Shape:
            x (..., H), token_embedding (V, E) -> logits (..., V). H: width of the layers, E: of the embedding,
            V: vocabulary.
        """
        x = self.features(x)
        return nn.functional.linear(x, token_embedding, self.bias) if self.output is None else self.output(x)
