"""Self-attention of a packed sequence: context, content and placeholder flows in one pass, and its incremental form."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from s2sft_fairseq.modules.attention_pattern import PackedPlan, StepPlan
from s2sft_fairseq.modules.flex_attention import flexible_attention
from s2sft_fairseq.modules.incremental_state import LayerCache
from s2sft_fairseq.modules.packed_attention import packed_attention
from s2sft_fairseq.modules.rotary_position import Rotation, rotate


class MultiFlowAttention(nn.Module):
    """Multi-head self-attention whose flows share all weights.

    T: tokens of a packed batch, H: width, h: heads, d: width of a head (H / h).
    """

    def __init__(self, *, embed_dim: int, num_heads: int, dropout: float, bias: bool = True) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=bias)
        self.output = nn.Linear(embed_dim, embed_dim, bias=bias)

    def forward(self, x: Tensor, plan: PackedPlan) -> Tensor:
        """Attend block by block, so that no score is computed for a key of a later block.

        Shape:
            x (T, H) -> (T, H).
        """
        return self.prefill(x, plan)[0]

    def keys_values(self, x: Tensor, plan: PackedPlan) -> Tensor:
        """Return the keys and values of a packed batch (T, H) as (T, 2, h, d)."""
        return self._project(x, plan.rotation)[:, 1:]

    def prefill(self, x: Tensor, plan: PackedPlan) -> tuple[Tensor, Tensor]:
        """Attend as :meth:`forward` does, and return the keys and values too.

        Shape:
            x (T, H) -> (T, H) and (T, 2, h, d).
        """
        projected = self._project(x, plan.rotation)
        if plan.flex is not None:
            attended = flexible_attention(projected, plan.flex)
        else:
            attended = packed_attention(projected, plan.blocks, self.dropout if self.training else 0.0)
        # (T, h, d) -> (T, H)
        return self.output(attended.flatten(1)), projected[:, 1:]

    def step(self, x: Tensor, plan: StepPlan, cache: LayerCache, queries: int) -> Tensor:
        """Attend from new tokens to the source, to what was generated, and to each other.

        All hypotheses of a sentence meet its slots in one product. The keys and values of a placeholder stand in the
        cache only until the next step writes over them.

        Args:
            x: states of the new tokens (N, A, H). N: sentences, A: new tokens of each.
            plan: what is added to the scores, and the turn of the new tokens.
            cache: keys, turned already, and values of this layer.
            queries: so many of the new tokens, the last ones, are attended from.

        Returns:
            (N, queries, H).
        """
        # (N, A, 3, h, d) -> three times (N, h, A, d)
        query, key, value = self._project(x, plan.rotation).permute(2, 0, 3, 1, 4).unbind(0)
        key, value = cache.write(key, value, plan.start)
        query, bias = query[:, :, -queries:], plan.bias[:, :, -queries:]
        attended = [
            _merge_heads(
                scaled_dot_product_attention(
                    query[rows], key[rows, :, first:], value[rows, :, first:], attn_mask=bias[rows, ..., first:]
                )
            )
            for rows, first in plan.groups
        ]
        return self.output(attended[0] if len(attended) == 1 else torch.cat(attended))

    def _project(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        """Project (..., H) to queries, keys and values (..., 3, h, d), the first two turned to their positions."""
        projected = self.qkv(x).unflatten(-1, (3, self.num_heads, -1))
        if rotation is None:
            return projected
        turned, values = projected.split((2, 1), dim=-3)
        return torch.cat([rotate(turned, rotation), values], dim=-3)


def _merge_heads(x: Tensor) -> Tensor:
    # (N, h, A, d) -> (N, A, h, d) -> (N, A, H)
    return x.transpose(1, 2).flatten(2)
