"""Self-attention of a packed sequence: context, content and placeholder flows in one pass, and its incremental form."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from s2sft_fairseq.modules.attention_pattern import PackedPlan, StepPlan
from s2sft_fairseq.modules.incremental_state import LayerCache
from s2sft_fairseq.modules.rotary_position import Rotation, rotate


class MultiFlowAttention(nn.Module):
    """Multi-head self-attention whose flows share all weights.

    B: examples, L: packed positions, H: width, h: heads, d: width of a head (H / h).
    """

    def __init__(self, *, embed_dim: int, num_heads: int, dropout: float, bias: bool = True) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=bias)
        self.output = nn.Linear(embed_dim, embed_dim, bias=bias)

    def forward(self, x: Tensor, plan: PackedPlan) -> Tensor:
        """Attend block by block, so that no score is computed for a key of a later block.

        Shape:
            x (B, L, H) -> (B, L, H).
        """
        query, key, value = self._project(x, plan.rotation)
        # Cut by split() and merged before they are joined: slicing and joining by hand would copy everything once more.
        queries = query.split([block.end - block.start for block in plan.blocks], dim=2)
        attended = [
            scaled_dot_product_attention(
                block_query,
                _prefix(key, block.end),
                _prefix(value, block.end),
                attn_mask=block.bias,
                dropout_p=self.dropout if self.training else 0.0,
            )
            for block_query, block in zip(queries, plan.blocks, strict=True)
        ]
        return self.output(torch.cat([_merge_heads(states) for states in attended], dim=1))

    def keys_values(self, x: Tensor, plan: PackedPlan) -> tuple[Tensor, Tensor]:
        """Return the keys and values of a context (n, S, H), each (n, h, S, d). n: sentences, S: source positions."""
        _, key, value = self._project(x, plan.rotation)
        return key, value

    def prefill(self, x: Tensor, plan: PackedPlan) -> tuple[Tensor, Tensor, Tensor]:
        """Attend within a context.

        Shape:
            x (n, S, H) -> (n, S, H), and the keys and values (n, h, S, d). n: sentences, S: source positions.
        """
        query, key, value = self._project(x, plan.rotation)
        (block,) = plan.blocks
        attended = scaled_dot_product_attention(query, key, value, attn_mask=block.bias)
        return self.output(_merge_heads(attended)), key, value

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
        query, key, value = self._project(x, plan.rotation)
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

    def _project(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Project to queries, keys and values, each (B, h, L, d), the first two turned to their positions."""
        # (B, L, 3H) -> (B, L, 3, h, d) -> (3, B, h, L, d)
        projected = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = projected.unbind(0)
        if rotation is not None:
            query, key = rotate(projected[:2], rotation).unbind(0)
        return query, key, value


def _prefix(x: Tensor, length: int) -> Tensor:
    """Return the first positions (B, h, length, d); all of them as they are, for even a whole slice costs a copy."""
    return x if length == x.size(2) else x[:, :, :length]


def _merge_heads(x: Tensor) -> Tensor:
    # (B, h, L, d) -> (B, L, h, d) -> (B, L, H)
    return x.transpose(1, 2).flatten(2)
