"""The input of the encoder: token embeddings, with position and segment embeddings where the model has them.

For dialogues the segment embedding may be the sum of two, of who speaks and of how long ago: segment ``s`` stands for
role ``s % roles`` and turn ``s // roles`` (ERNIE-GEN's program).

A token embedding (V, E) that is the output matrix too gets a gradient from both uses. All rows have one from the
output, and the look-up adds to a few of them. So the output leaves its gradient, and the look-up completes it and hands
it over as the only one, which saves a second matrix and a sum. In the backward pass the output always comes first.
V: vocabulary, E: width of the embedding.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from s2sft_fairseq.modules.dropout import Dropout
from s2sft_fairseq.modules.matmul import Linear
from s2sft_fairseq.modules.norms import Norms


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
        # A GPU would round the row of a frequent token after each addition, and lose the last ones of some hundred.
        wide = total.float() if total.dtype in (torch.float16, torch.bfloat16) else total
        wide.index_add_(0, tokens.flatten(), gradient.flatten(0, -2).to(wide.dtype))
        total = wide.to(total.dtype)
        total[ctx.padding] = of_padding
        return total, None, None, None


class PackedEmbeddings(nn.Module):
    """Sum of the embeddings, layer norm and dropout, as in BERT; then, as in ELECTRA, a projection to wider layers."""

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
    ) -> None:
        """Make the tables; 0 rows leave one out, and so does None the norm. The projection is for two widths."""
        super().__init__()
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
            tokens: and ``positions``, ``segments``: ids (...).
            tied: where the output matrix leaves its gradient, if it is the token embedding and does so.

        Returns:
            (..., H). H: width of the layers.
        """
        table = self.tokens
        if tied is None:
            x: Tensor = table(tokens)
        else:
            x = tied_embedding(tokens, table.weight, table.padding_idx, tied)  # type: ignore[arg-type]  # it has one
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
