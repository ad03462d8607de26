"""The input of the encoder: token embeddings, and position and segment embeddings if the model has them.

For dialogues the segment embedding may be the sum of a role embedding (who speaks) and a turn embedding (how long ago):
segment ``s`` means role ``s % roles`` and turn ``s // roles`` (ERNIE-GEN's program).

A token embedding (V, E) that is also the output matrix gets gradients from both uses: the output contributes to all
rows, the look-up to a few. To save a second matrix and a sum, the output stores its gradient in a `TiedGradient`, and
the look-up adds its own and returns the total. In the backward pass the output always comes first. V: vocabulary,
E: width of the embedding.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from s2sft_fairseq.modules.dropout import Dropout
from s2sft_fairseq.modules.matmul import Linear
from s2sft_fairseq.modules.norms import Norms


class TiedGradient:
    """Passes the gradient of the tied matrix from the output to the look-up, within one backward pass."""

    def __init__(self) -> None:
        self._from_output: Tensor | None = None

    def leave(self, gradient: Tensor) -> None:
        """Store the gradient of the output matrix until the look-up takes it."""
        self._from_output = gradient

    def take(self) -> Tensor | None:
        """Return the gradient of the output matrix, and forget it; None if the output took no part in the loss."""
        gradient, self._from_output = self._from_output, None
        return gradient


def tied_embedding(tokens: Tensor, weight: Tensor, padding: int, gradient: TiedGradient) -> Tensor:
    """Look up rows.

    Args:
        tokens: ids (...).
        weight: the matrix (V, E).
        padding: the id whose row gets no gradient from the look-up.
        gradient: holds the gradient from the output.

    Returns:
        The rows (..., E).
    """
    embedded: Tensor = _LookUp.apply(weight, tokens, padding, gradient)
    return embedded


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
        # Add in float32: in 16 bits, rounding after each addition would lose gradients of frequent tokens.
        wide = total.float() if total.dtype in (torch.float16, torch.bfloat16) else total
        wide.index_add_(0, tokens.flatten(), gradient.flatten(0, -2).to(wide.dtype))
        total = wide.to(total.dtype)
        total[ctx.padding] = of_padding
        return total, None, None, None


class PackedEmbeddings(nn.Module):
    """Sum of the embeddings, norm and dropout, as in BERT, and a projection to wider layers, as in ELECTRA."""

    def __init__(
        self,
        *,
        vocab_size: int,
        embed_dim: int,
        output_dim: int,
        num_positions: int,
        num_segments: int,
        pad: int,
        norms: Norms | None,
        dropout: float,
        bias: bool,
        num_roles: int = 0,
        num_turns: int = 0,
        scale: float = 1.0,
    ) -> None:
        """Create the tables. A table of 0 rows is left out, and so is the norm if ``norms`` is None.

        There is a projection if ``embed_dim`` and ``output_dim`` differ. Token embeddings are multiplied by ``scale``.
        """
        super().__init__()
        self.scale = scale
        self.tokens = nn.Embedding(vocab_size, embed_dim, padding_idx=pad)
        self.positions = nn.Embedding(num_positions, embed_dim) if num_positions else None
        self.segments = nn.Embedding(num_segments, embed_dim) if num_segments else None
        self.roles = nn.Embedding(num_roles, embed_dim) if num_roles else None
        self.turns = nn.Embedding(num_turns, embed_dim) if num_turns else None
        self.layer_norm = norms.make(embed_dim) if norms else nn.Identity()
        self.dropout = Dropout(dropout)
        self.projection = Linear(embed_dim, output_dim, bias=bias) if output_dim != embed_dim else None

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor, tied: TiedGradient | None = None) -> Tensor:
        """Embed tokens.

        Args:
            tokens: ids of the tokens (...).
            positions: position ids (...).
            segments: segment ids (...).
            tied: receives the gradient of the output matrix, if that is the token embedding.

        Returns:
            States (..., H). H: width of the layers.
        """
        table = self.tokens
        if tied is None:
            x: Tensor = table(tokens)
        else:
            x = tied_embedding(tokens, table.weight, table.padding_idx, tied)  # type: ignore[arg-type]  # it has one
        if self.scale != 1:
            x = x * self.scale
        if self.positions is not None:
            x = x + self.positions(positions)
        if self.segments is not None:
            x = x + self.segments(segments)
        if self.roles is not None and self.turns is not None:
            roles = self.roles.num_embeddings
            x = x + self.roles(segments % roles) + self.turns(segments // roles)
        x = self.dropout(self.layer_norm(x))
        if self.projection is not None:
            x = self.projection(x)
        return x
