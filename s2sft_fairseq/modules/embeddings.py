"""The input of the encoder: token, position and optional segment embeddings."""

from torch import Tensor, nn


class PackedEmbeddings(nn.Module):
    """Sum of the embeddings, layer norm and dropout, as in BERT."""

    def __init__(
        self,
        *,
        vocab_size: int,
        embed_dim: int,
        max_positions: int,
        num_segments: int,
        pad: int,
        layer_norm_eps: float,
        dropout: float,
    ) -> None:
        """Make the tables; ``num_segments`` 0 leaves the segment embedding out, as in RoBERTa."""
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, embed_dim, padding_idx=pad)
        self.positions = nn.Embedding(max_positions, embed_dim)
        self.segments = nn.Embedding(num_segments, embed_dim) if num_segments else None
        self.layer_norm = nn.LayerNorm(embed_dim, eps=layer_norm_eps)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, positions: Tensor, segments: Tensor) -> Tensor:
        """Embed a packed sequence.

        Shape:
            each (B, L) -> (B, L, H). B: examples, L: packed positions, H: width.
        """
        x = self.tokens(tokens) + self.positions(positions)
        if self.segments is not None:
            x = x + self.segments(segments)
        return self.dropout(self.layer_norm(x))
