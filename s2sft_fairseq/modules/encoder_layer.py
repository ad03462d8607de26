"""One post-norm Transformer layer, as in BERT."""

from collections.abc import Callable, Sequence

from torch import Tensor, nn

from s2sft_fairseq.modules.incremental_state import LayerCache
from s2sft_fairseq.modules.multi_flow_attention import MultiFlowAttention
from s2sft_fairseq.modules.visibility import AttentionBlock


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network; each is added to its input and normalised."""

    def __init__(
        self,
        *,
        embed_dim: int,
        ffn_embed_dim: int,
        num_heads: int,
        activation: Callable[[Tensor], Tensor],
        layer_norm_eps: float,
        dropout: float,
        attention_dropout: float,
        activation_dropout: float,
    ) -> None:
        super().__init__()
        self.attention = MultiFlowAttention(embed_dim=embed_dim, num_heads=num_heads, dropout=attention_dropout)
        self.attention_layer_norm = nn.LayerNorm(embed_dim, eps=layer_norm_eps)
        self.fc1 = nn.Linear(embed_dim, ffn_embed_dim)
        self.fc2 = nn.Linear(ffn_embed_dim, embed_dim)
        self.final_layer_norm = nn.LayerNorm(embed_dim, eps=layer_norm_eps)
        self.activation = activation
        self.dropout = nn.Dropout(dropout)
        self.activation_dropout = nn.Dropout(activation_dropout)

    def forward(self, x: Tensor, blocks: Sequence[AttentionBlock]) -> Tensor:
        """Encode a packed sequence.

        Shape:
            (B, L, H) -> (B, L, H). B: examples, L: packed positions, H: width.
        """
        return self._after_attention(x, self.attention(x, blocks))

    def prefill(self, x: Tensor, blocks: Sequence[AttentionBlock], cache: LayerCache) -> Tensor:
        """Encode the source and keep its keys and values; shapes as in :meth:`MultiFlowAttention.prefill`."""
        return self._after_attention(x, self.attention.prefill(x, blocks, cache))

    def step(
        self, x: Tensor, cache: LayerCache, num_cached: int, source_bias: Tensor, generated_bias: Tensor | None
    ) -> Tensor:
        """Encode the newest tokens; arguments as for :meth:`MultiFlowAttention.step`."""
        return self._after_attention(x, self.attention.step(x, cache, num_cached, source_bias, generated_bias))

    def _after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        x = self.attention_layer_norm(x + self.dropout(attended))
        hidden = self.activation_dropout(self.activation(self.fc1(x)))
        return self.final_layer_norm(x + self.dropout(self.fc2(hidden)))
