"""The input of the encoder: token embeddings, with position and segment embeddings where the model has them.

For dialogues the segment embedding may be the sum of two, of who speaks and of how long ago: segment ``s`` stands for
role ``s % roles`` and turn ``s // roles`` (ERNIE-GEN's program).
"""

from torch import Tensor, nn

from s2sft_fairseq.modules.dropout import Dropout
from s2sft_fairseq.modules.tied_embedding import TiedGradient, tied_embedding


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
        layer_norm_eps: float,
        dropout: float,
        bias: bool,
        num_roles: int = 0,
        num_turns: int = 0,
    ) -> None:
        """Make the tables, of which 0 rows leave one out; the projection only where the two widths differ."""
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, embed_dim, padding_idx=pad)
        self.positions = nn.Embedding(num_positions, embed_dim) if num_positions else None
        self.segments = nn.Embedding(num_segments, embed_dim) if num_segments else None
        self.roles = nn.Embedding(num_roles, embed_dim) if num_roles else None
        self.turns = nn.Embedding(num_turns, embed_dim) if num_turns else None
        self.layer_norm = nn.LayerNorm(embed_dim, eps=layer_norm_eps, bias=bias)
        self.dropout = Dropout(dropout)
        self.projection = nn.Linear(embed_dim, output_dim, bias=bias) if output_dim != embed_dim else None

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor, tied: TiedGradient | None = None) -> Tensor:
        """Embed tokens.

        Args:
            tokens: and ``positions``, ``segments``: ids (...).
            tied: where the output matrix leaves its gradient, if it is the token embedding and does so.

        Returns:
            (..., H). H: width of the layers.
        """
        table = self.tokens
        x = table(tokens) if tied is None else tied_embedding(tokens, table.weight, table.padding_idx, tied)
        if self.positions is not None:
            x = x + self.positions(positions)
        if self.segments is not None:
            x = x + self.segments(segments)
        if self.roles is not None and self.turns is not None:
            roles = self.roles.num_embeddings
            x = x + self.roles(segments % roles) + self.turns(segments // roles)
        x = self.dropout(self.layer_norm(x))
        return x if self.projection is None else self.projection(x)
