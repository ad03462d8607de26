"""Multi-flow attention: the attention of a model's layers, over a packed batch and in a step of decoding.

Layers with the same pattern share one plan. Context, content and placeholder flows of a packed batch attend in one
pass. Decoding attends step by step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from torch.nn.functional import scaled_dot_product_attention

from s2sft_fairseq.modules.flash_attention import FlashPlan, flash_attention, flash_plan
from s2sft_fairseq.modules.incremental_state import IncrementalState, LayerCache
from s2sft_fairseq.modules.matmul import Linear
from s2sft_fairseq.modules.norms import Norms
from s2sft_fairseq.modules.packed_attention import flex_mask, flexible_attention, packed_attention
from s2sft_fairseq.modules.padded_attention import PaddedPlan, padded_attention, padded_plan
from s2sft_fairseq.modules.positions import Rotation, rotate, rotation_at
from s2sft_fairseq.modules.visibility import (
    AttentionBlock,
    PackedColumns,
    attention_blocks,
    blocks_at,
    within_window,
)


class PackedPlan(NamedTuple):
    """The plan of a packed batch for the layers of one pattern."""

    attention: list[AttentionBlock] | PaddedPlan | FlashPlan | BlockMask
    """The plan of attention: block by block, padded in one call, flash attention, or FlexAttention."""
    rotation: Rotation | None
    at: Tensor | None = None
    """Indices of the tokens that attend (N,); None: all."""
    table: Tensor | None = None
    """Table of relative positions (R, H), which disentangled attention projects. R: rows of the table."""

    def restricted(self, at: Tensor) -> "PackedPlan":
        """Return the plan of a layer in which only some tokens attend, given by ascending indices (N,)."""
        attention = blocks_at(at, self.attention) if isinstance(self.attention, list) else self.attention
        return self._replace(attention=attention, at=at)


class StepPlan(NamedTuple):
    """The plan of a step of decoding for the layers of one pattern.

    N: sentences, A: new tokens of each, S: slots that are read, including those of the new tokens, h: heads.
    """

    bias: Tensor
    """Added to the scores of the new tokens (N, 1 or h, A, S)."""
    slots: slice | Tensor
    """Slots of the new tokens (A,)."""
    groups: Sequence[tuple[slice, int]]
    """Sentences that attend together, and the first slot that any of them sees."""
    rotation: Rotation | None
    table: Tensor | None = None
    """Table of relative positions (R, H), which disentangled attention projects. R: rows of the table."""
    rows: Tensor | None = None
    """Rows of the table, for each position of new tokens and each slot (N, positions, S)."""


@dataclass(frozen=True)
class AttentionPattern:
    """The settings of a layer's attention. Layers with equal patterns share one plan."""

    head_dim: int
    rotary_base: float
    """Base of rotary positions; 0: no rotary positions."""
    window: int
    """A query sees keys at most ``window // 2`` positions away; 0: at any distance."""
    rotary_scaling: str = ""
    """Makes rotations slower, see `positions.scaled`; empty: it does not."""

    def packed(
        self,
        columns: PackedColumns,
        *,
        relative: nn.Module | None,
        dtype: torch.dtype,
        kind: str = "loop",
    ) -> PackedPlan:
        """Plan a packed batch.

        Args:
            columns: the columns of the batch.
            relative: the relative position bias of the model.
            dtype: the data type of the layers.
            kind: the kind of attention: ``loop`` over blocks, ``padded``, ``flash`` (only if there is no obstacle), or
                ``flex``.
        """
        rotation = self.rotation(columns.positions, dtype)
        if kind == "flex":
            return PackedPlan(flex_mask(columns, window=self.window), rotation)
        if kind == "flash":
            return PackedPlan(flash_plan(columns, window=self.window, dtype=dtype), rotation)
        plan = padded_plan if kind == "padded" else attention_blocks
        return PackedPlan(plan(columns, window=self.window, relative_bias=relative, dtype=dtype), rotation)

    def step(
        self,
        state: IncrementalState,
        seen: Tensor,
        positions: Tensor,
        slots: slice | Tensor,
        *,
        relative: nn.Module | None,
        dtype: torch.dtype,
    ) -> StepPlan:
        """Plan a step of decoding.

        Args:
            state: the incremental state before the step, but with the positions of the new tokens.
            seen: which slots the new tokens see (N, A, S).
            positions: position ids of the new tokens (N, A).
            slots: slots of the new tokens (A,).
            relative: the relative position bias of the model.
            dtype: the data type of the layers.
        """
        key_positions, groups = state.positions[:, : seen.size(-1)], state.groups
        if self.window:
            seen = seen & within_window(positions, key_positions, self.window)
            if positions.device.type == "cpu":  # not on a GPU: the host would wait, and a CUDA graph has fixed shapes
                groups = [(rows, _first_seen(seen[rows])) for rows, _ in groups]
        # (N, A, S) -> (N, 1, A, S), for every head
        hidden = ~seen.unsqueeze(1)
        bias = torch.zeros_like(hidden, dtype=dtype) if relative is None else relative(positions, key_positions)
        bias = bias.masked_fill(hidden, float("-inf"))
        return StepPlan(bias, slots, groups, self.rotation(positions, dtype))

    def rotation(self, positions: Tensor, dtype: torch.dtype) -> Rotation | None:
        """Return the rotations of queries and keys at position ids (...); None without rotary positions."""
        if not self.rotary_base:
            return None
        return rotation_at(positions, self.head_dim, self.rotary_base, dtype, scaling=self.rotary_scaling)


def _first_seen(seen: Tensor) -> int:
    """Return the first slot that any new token sees, (n, A, S) -> a number."""
    # argmax returns the first of equal maxima.
    return int(seen.flatten(0, 1).any(dim=0).to(torch.uint8).argmax())


class MultiFlowAttention(nn.Module):
    """Multi-head self-attention whose flows share all weights.

    With grouped-query attention (Ainslie et al., 2023, arXiv 2305.13245) each key and value serves a group of heads.

    T: tokens of a packed batch, H: width, h: heads, g: groups (h without grouping), d: width of a head.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        num_heads: int,
        dropout: float,
        bias: bool = True,
        output_bias: bool | None = None,
        key_value_heads: int = 0,
        head_dim: int = 0,
        query_key_norms: Norms | None = None,
    ) -> None:
        """Build the layer.

        Args:
            embed_dim: width, H.
            num_heads: number of heads, h.
            dropout: dropout of the attention weights.
            bias: whether the projections of queries, keys and values have biases.
            output_bias: whether the projection of the output has a bias; None: if the others have.
            key_value_heads: number of groups of heads that share keys and values, g; 0: each head has its own.
            head_dim: width of a head, d; 0: H / h.
            query_key_norms: factory of the norms of each head's queries and keys; None: there are none.
        """
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.group_size = num_heads // (key_value_heads or num_heads)
        groups = num_heads // self.group_size
        head_dim = head_dim or embed_dim // num_heads
        self.qkv = Linear(embed_dim, (num_heads + 2 * groups) * head_dim, bias=bias)
        self.output = Linear(num_heads * head_dim, embed_dim, bias=bias if output_bias is None else output_bias)
        self.query_norm = None if query_key_norms is None else query_key_norms.make(head_dim)
        self.key_norm = None if query_key_norms is None else query_key_norms.make(head_dim)

    def forward(self, x: Tensor, plan: PackedPlan) -> Tensor:
        """Attend as the plan says.

        Shape:
            x (T, H) -> (N, H). N: tokens that attend by the plan: all T, except in the last layer in training.
        """
        return self.prefill(x, plan)[0]

    def keys_values(self, x: Tensor, plan: PackedPlan) -> Tensor:
        """Return the keys and values of a packed batch (T, H) as (T, 2, g, d)."""
        return self._of_groups(self.project(x, plan.rotation))

    def prefill(self, x: Tensor, plan: PackedPlan) -> tuple[Tensor, Tensor]:
        """Attend as :meth:`forward` does, and return the keys and values, too.

        Shape:
            x (T, H) -> (N, H) and (T, 2, g, d).
        """
        projected = self.project(x, plan.rotation)
        dropout = self.dropout if self.training else 0.0
        if isinstance(plan.attention, PaddedPlan):
            attended = padded_attention(projected, plan.attention, dropout, at=plan.at)
        elif isinstance(plan.attention, FlashPlan):
            attended = flash_attention(projected, plan.attention, dropout, at=plan.at)
        elif isinstance(plan.attention, BlockMask):
            attended = flexible_attention(projected, plan.attention)
            attended = attended if plan.at is None else attended[plan.at]
        else:
            attended = packed_attention(projected, self.biased_blocks(projected, plan), dropout, at=plan.at)
        # (N, h, d) -> (N, h d)
        return self.output(attended.flatten(1)), self._of_groups(projected)

    def step(self, x: Tensor, plan: StepPlan, cache: LayerCache, queries: int) -> Tensor:
        """Attend from new tokens to the source, to generated tokens, and to each other.

        One product computes the scores of all hypotheses of a sentence with its slots. The keys and values of
        placeholders stay in the cache only until the next step overwrites them.

        Args:
            x: states of the new tokens (N, A, H). N: sentences, A: new tokens of each.
            plan: the plan of the step.
            cache: keys, already rotated, and values of this layer.
            queries: number of new tokens, the last ones, that attend.

        Returns:
            The result (N, queries, H).
        """
        # (N, A, 3, h, d) -> three times (N, h, A, d)
        query, key, value = self.project(x, plan.rotation).permute(2, 0, 3, 1, 4).unbind(0)
        key, value = key[:, :: self.group_size], value[:, :: self.group_size]
        key, value = cache.write(key, value, plan.slots, plan.bias.size(-1))
        query = query[:, :, -queries:]
        query, bias = map(self._gathered, (query, self.step_bias(query, key, plan)))
        attended = [
            merge_heads(
                scaled_dot_product_attention(
                    query[rows], key[rows, :, first:], value[rows, :, first:], attn_mask=bias[rows, ..., first:]
                ).reshape(-1, self.num_heads, queries, key.size(-1))
            )
            for rows, first in plan.groups
        ]
        x = self.output(attended[0] if len(attended) == 1 else torch.cat(attended))
        return x

    def biased_blocks(self, projected: Tensor, plan: PackedPlan) -> Sequence[AttentionBlock]:
        """Return the blocks of a plan; a subclass may add biases of its own.

        Args:
            projected: queries, keys and values (T, 3, h, d).
            plan: a plan that attends block by block.
        """
        blocks: list[AttentionBlock] = plan.attention  # type: ignore[assignment]  # as the plan says
        return blocks

    def step_bias(self, query: Tensor, key: Tensor, plan: StepPlan) -> Tensor:
        """Return the bias that is added to the scores of a step (N, 1 or h, queries, S).

        Args:
            query: queries of the last new tokens (N, h, queries, d).
            key: keys of the slots that are read (N, h, S, d).
            plan: the plan of the step.
        """
        return plan.bias[:, :, -query.size(2) :]

    def project(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        """Project (..., H) to queries, keys and values (..., 3, h, d), and rotate queries and keys by their positions.

        The keys and values of a group are repeated for each of its heads.
        """
        projected: Tensor = self.qkv(x)
        if self.group_size == 1 and self.query_norm is None:
            projected = projected.unflatten(-1, (3, self.num_heads, -1))
        else:
            groups = self.num_heads // self.group_size
            query, *shared = projected.unflatten(-1, (self.num_heads + 2 * groups, -1)).split(
                (self.num_heads, groups, groups), dim=-2
            )
            if self.query_norm is not None and self.key_norm is not None:
                query = self.query_norm(query).to(query.dtype)
                shared[0] = self.key_norm(shared[0]).to(query.dtype)
            if self.group_size > 1:
                # (..., g, d) -> (..., h, d)
                shared = [each.repeat_interleave(self.group_size, dim=-2) for each in shared]
            projected = torch.stack([query, *shared], dim=-3)
        if rotation is None:
            return projected
        rotated, values = projected.split((2, 1), dim=-3)
        return torch.cat([rotate(rotated, rotation), values], dim=-3)

    def _of_groups(self, projected: Tensor) -> Tensor:
        # (T, 3, h, d) -> (T, 2, g, d)
        return projected[:, 1:, :: self.group_size]

    def _gathered(self, x: Tensor) -> Tensor:
        """Concatenate the queries of a group's heads, or their biases, so that they share the keys of the group.

        Shape:
            (N, h or 1, A, ...) -> (N, g or 1, A h / g, ...).
        """
        if self.group_size == 1:
            return x
        if x.size(1) == 1:
            x = x.expand(-1, self.group_size, -1, -1)
        # (N, h, A, ...) -> (N, g, h / g, A, ...) -> (N, g, A h / g, ...)
        gathered: Tensor = x.unflatten(1, (-1, self.group_size)).flatten(2, 3)
        return gathered


def merge_heads(x: Tensor) -> Tensor:
    """Concatenate the heads, (N, h, A, d) -> (N, A, h d)."""
    # (N, h, A, d) -> (N, A, h, d) -> (N, A, h d)
    return x.transpose(1, 2).flatten(2)
