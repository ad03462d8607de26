"""One Transformer layer: post-norm as in BERT, or pre-norm as in ModernBERT."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from s2sft_fairseq.modules.attention_pattern import PackedPlan, StepPlan
from s2sft_fairseq.modules.dropout import Dropout
from s2sft_fairseq.modules.incremental_state import LayerCache
from s2sft_fairseq.modules.multi_flow_attention import MultiFlowAttention


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network; each is added to its input.

    Post-norm normalises the two sums, pre-norm what attention and feed-forward network read.
    """

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
        pre_norm: bool,
        gated: bool,
        bias: bool,
        first: bool,
        compiled: bool = False,
    ) -> None:
        """Make the layer; the first one of a pre-norm model reads embeddings that are normalised already.

        With ``compiled`` training fuses what it does to each position by itself (torch.compile).
        """
        super().__init__()
        self.compiled = compiled
        self.pre_norm, self.gated = pre_norm, gated
        self.attention = MultiFlowAttention(
            embed_dim=embed_dim, num_heads=num_heads, dropout=attention_dropout, bias=bias
        )
        self.attention_layer_norm = (
            nn.Identity() if pre_norm and first else nn.LayerNorm(embed_dim, eps=layer_norm_eps, bias=bias)
        )
        self.fc1 = nn.Linear(embed_dim, 2 * ffn_embed_dim if gated else ffn_embed_dim, bias=bias)
        self.fc2 = nn.Linear(ffn_embed_dim, embed_dim, bias=bias)
        self.final_layer_norm = nn.LayerNorm(embed_dim, eps=layer_norm_eps, bias=bias)
        self.activation = activation
        self.dropout = Dropout(dropout)
        self.activation_dropout = Dropout(activation_dropout)

    def forward(self, x: Tensor, plan: PackedPlan) -> Tensor:
        """Encode a packed sequence.

        Shape:
            (T, H) -> (T, H). T: tokens of the batch, H: width.
        """
        attended = self.attention(self._before_attention(x), plan)
        return _compiled_part()(self, x, attended) if self.compiled else self._after_attention(x, attended)

    def keys_values(self, x: Tensor, plan: PackedPlan) -> Tensor:
        """Return the keys and values of a context; shapes as in :meth:`MultiFlowAttention.keys_values`."""
        return self.attention.keys_values(self._before_attention(x), plan)

    def prefill(self, x: Tensor, plan: PackedPlan) -> tuple[Tensor, Tensor]:
        """Encode a context, and return its keys and values; shapes as in :meth:`MultiFlowAttention.prefill`."""
        attended, keys_values = self.attention.prefill(self._before_attention(x), plan)
        return self._after_attention(x, attended), keys_values

    def step(self, x: Tensor, plan: StepPlan, cache: LayerCache, queries: int) -> Tensor:
        """Encode the last ``queries`` of the new tokens; arguments as for :meth:`MultiFlowAttention.step`."""
        attended = self.attention.step(self._before_attention(x), plan, cache, queries)
        return self._after_attention(x[:, -queries:], attended)

    def _before_attention(self, x: Tensor) -> Tensor:
        return self.attention_layer_norm(x) if self.pre_norm else x

    def _after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.dropout(attended)
        if self.pre_norm:
            return x + self.dropout(self._feed_forward(self.final_layer_norm(x)))
        x = self.attention_layer_norm(x)
        return self.final_layer_norm(x + self.dropout(self._feed_forward(x)))

    def _feed_forward(self, x: Tensor) -> Tensor:
        if self.gated:
            # (..., 2I) -> twice (..., I). I: inner width.
            hidden, gate = self.fc1(x).chunk(2, dim=-1)
            hidden = self.activation(hidden) * gate
        else:
            hidden = self.activation(self.fc1(x))
        return self.fc2(self.activation_dropout(hidden))


@functools.cache
def _compiled_part() -> Callable[[EncoderLayer, Tensor, Tensor], Tensor]:
    """Compile what follows attention, once for all layers and numbers of tokens."""
    return torch.compile(EncoderLayer._after_attention, dynamic=True)
