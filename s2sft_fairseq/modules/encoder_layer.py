"""One Transformer layer: attention and a feed-forward network.

Norms come after both, as in BERT; before them, as in ModernBERT; or before them and of their outputs, as in Gemma 3.
"""

import functools
from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from s2sft_fairseq.modules.dropout import Dropout
from s2sft_fairseq.modules.incremental_state import LayerCache
from s2sft_fairseq.modules.matmul import Linear
from s2sft_fairseq.modules.multi_flow_attention import MultiFlowAttention, PackedPlan, StepPlan
from s2sft_fairseq.modules.norms import Norms


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward network; each is added to its input.

    Post-norm normalizes the two sums, pre-norm the inputs of attention and feed-forward network. Pre-norm layers may
    also normalize the outputs of the two, before they are added.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        ffn_embed_dim: int,
        num_heads: int,
        activation: Callable[[Tensor], Tensor],
        norms: Norms,
        dropout: float,
        attention_dropout: float,
        activation_dropout: float,
        pre_norm: bool,
        gated: bool,
        biased: Collection[str],
        reads_normalised: bool,
        output_norms: bool = False,
        key_value_heads: int = 0,
        head_dim: int = 0,
        query_key_norms: Norms | None = None,
        compiled: bool = False,
        attention: MultiFlowAttention | None = None,
    ) -> None:
        """Build the layer.

        Args:
            embed_dim: width, H.
            ffn_embed_dim: inner width of the feed-forward network.
            num_heads: number of attention heads.
            activation: activation of the feed-forward network.
            norms: factory of the norms.
            dropout: dropout of the outputs of attention and feed-forward network.
            attention_dropout: dropout of attention weights.
            activation_dropout: dropout of inner states.
            pre_norm: whether norms come before attention and feed-forward network.
            gated: whether the feed-forward network is gated.
            biased: which of ``attention``, ``qkv``, ``fc1`` and ``fc2`` have biases.
            reads_normalised: whether the input is already normalized, as in the first layer of ModernBERT; a pre-norm
                layer then has no norm before attention.
            output_norms: whether a pre-norm layer also normalizes the outputs of attention and feed-forward network.
            key_value_heads: number of groups of heads that share keys and values; 0: each head has its own.
            head_dim: width of a head; 0: that of the layer, divided by ``num_heads``.
            query_key_norms: factory of the norms of each head's queries and keys; None: there are none.
            compiled: whether to fuse the position-wise operations by torch.compile.
            attention: the attention of the layer; None: plain multi-flow attention.
        """
        super().__init__()
        self.compiled = compiled
        self.pre_norm, self.gated = pre_norm, gated
        self.attention = attention or MultiFlowAttention(
            embed_dim=embed_dim,
            num_heads=num_heads,
            dropout=attention_dropout,
            bias="attention" in biased or "qkv" in biased,
            output_bias="attention" in biased,
            key_value_heads=key_value_heads,
            head_dim=head_dim,
            query_key_norms=query_key_norms,
        )
        self.attention_layer_norm = nn.Identity() if pre_norm and reads_normalised else norms.make(embed_dim)
        self.fc1 = Linear(embed_dim, 2 * ffn_embed_dim if gated else ffn_embed_dim, bias="fc1" in biased)
        self.fc2 = Linear(ffn_embed_dim, embed_dim, bias="fc2" in biased)
        self.final_layer_norm = norms.make(embed_dim)
        self.attention_output_norm = norms.make(embed_dim) if output_norms else nn.Identity()
        self.ffn_output_norm = norms.make(embed_dim) if output_norms else nn.Identity()
        self.activation = activation
        self.dropout = Dropout(dropout)
        self.activation_dropout = Dropout(activation_dropout)

    def forward(self, x: Tensor, plan: PackedPlan) -> Tensor:
        """Encode a packed batch.

        Shape:
            (T, H) -> (N, H). T: tokens of the batch, N: tokens that attend by the plan, H: width.
        """
        attended = self.attention(self.before_attention(x), plan)
        x = x if plan.at is None else x[plan.at]
        return _compiled_part()(self, x, attended) if self.compiled else self.after_attention(x, attended)

    def keys_values(self, x: Tensor, plan: PackedPlan) -> Tensor:
        """Return the keys and values of a context; see :meth:`MultiFlowAttention.keys_values`."""
        return self.attention.keys_values(self.before_attention(x), plan)

    def prefill(self, x: Tensor, plan: PackedPlan) -> tuple[Tensor, Tensor]:
        """Encode a context, and return its states and its keys and values; see :meth:`MultiFlowAttention.prefill`."""
        attended, keys_values = self.attention.prefill(self.before_attention(x), plan)
        return self.after_attention(x, attended), keys_values

    def step(self, x: Tensor, plan: StepPlan, cache: LayerCache, queries: int) -> Tensor:
        """Encode the last ``queries`` of the new tokens; see :meth:`MultiFlowAttention.step`."""
        attended = self.attention.step(self.before_attention(x), plan, cache, queries)
        return self.after_attention(x[:, -queries:], attended)

    def before_attention(self, x: Tensor) -> Tensor:
        """Return the input of attention, (..., H) -> (..., H)."""
        return self.attention_layer_norm(x) if self.pre_norm else x

    def after_attention(self, x: Tensor, attended: Tensor) -> Tensor:
        """Return the output of the layer, from its input and the output of attention, each (..., H)."""
        x = x + self.dropout(self.attention_output_norm(attended))
        if self.pre_norm:
            x = x + self.dropout(self.ffn_output_norm(self._feed_forward(self.final_layer_norm(x))))
        else:
            x = self.attention_layer_norm(x)
            x = self.final_layer_norm(x + self.dropout(self._feed_forward(x)))
        return x

    def _feed_forward(self, x: Tensor) -> Tensor:
        if self.gated:
            # (..., 2I) -> twice (..., I). I: inner width.
            hidden, gate = self.fc1(x).chunk(2, dim=-1)
            hidden = self.activation(hidden) * gate
        else:
            hidden = self.activation(self.fc1(x))
        x = self.fc2(self.activation_dropout(hidden))
        return x


@functools.cache
def _compiled_part() -> Callable[[EncoderLayer, Tensor, Tensor], Tensor]:
    """Compile the part after attention, once for all layers and numbers of tokens."""
    return torch.compile(EncoderLayer.after_attention, dynamic=True)
