"""Multi-flow attention: how the layers of a model attend, to a packed batch and in a step of decoding.

What layers of equal settings need is planned once for all of them. Context, content and placeholder flows of a packed
batch attend in one pass. Decoding attends step by step.
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
    """What the layers of one pattern need to know of a packed batch."""

    attention: list[AttentionBlock] | PaddedPlan | FlashPlan | BlockMask
    """Attend block by block, padded in one call, by flash attention, or by FlexAttention."""
    rotation: Rotation | None
    at: Tensor | None = None
    """Numbers of the tokens that attend (N,); None: all."""
    table: Tensor | None = None
    """Of relative positions (R, H), which disentangled attention projects. R: its rows."""

    def restricted(self, at: Tensor) -> "PackedPlan":
        """Return the plan of a layer in which only these tokens attend: numbers, ascending (N,)."""
        attention = blocks_at(at, self.attention) if isinstance(self.attention, list) else self.attention
        return self._replace(attention=attention, at=at)


class StepPlan(NamedTuple):
    """What the layers of one pattern need to know of a step of decoding.

    N: sentences, A: new tokens of each, S: slots that are read, those of the new tokens among them, h: heads.
    """

    bias: Tensor
    """Added to the scores of the new tokens against the slots that are read (N, 1 or h, A, S)."""
    slots: slice | Tensor
    """Where the keys and values of the new tokens go (A,)."""
    groups: Sequence[tuple[slice, int]]
    """Sentences that attend together, and the first slot that any of them sees."""
    rotation: Rotation | None
    table: Tensor | None = None
    """Of relative positions (R, H), which disentangled attention projects. R: its rows."""
    rows: Tensor | None = None
    """Of the table, for each position that new tokens have, and each slot (N, positions, S)."""


@dataclass(frozen=True)
class AttentionPattern:
    """The settings of one kind of layer; what layers of equal patterns need is worked out once for all of them."""

    head_dim: int
    rotary_base: float
    """0: no rotary positions."""
    window: int
    """A query sees keys at most ``window // 2`` positions away; 0: at any distance."""

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
            columns: of the batch.
            relative: the model's relative position bias.
            dtype: the data type of the layers.
            kind: of attention: ``loop`` over blocks, ``padded``, ``flash`` where there is no obstacle, or ``flex``.
        """
        rotation = self._rotation(columns.positions, dtype)
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
            state: the incremental state before it, with the positions of the new tokens.
            seen: which slots the new tokens see (N, A, S).
            positions: their position ids (N, A).
            slots: where they stand (A,).
            relative: the model's relative position bias.
            dtype: the data type of the layers.
        """
        key_positions, groups = state.positions[:, : seen.size(-1)], state.groups
        if self.window:
            seen = seen & within_window(positions, key_positions, self.window)
            if positions.device.type == "cpu":  # a GPU would be waited for, and a CUDA graph has fixed shapes
                groups = [(rows, _first_seen(seen[rows])) for rows, _ in groups]
        # (N, A, S) -> (N, 1, A, S), for every head
        hidden = ~seen.unsqueeze(1)
        bias = torch.zeros_like(hidden, dtype=dtype) if relative is None else relative(positions, key_positions)
        bias = bias.masked_fill(hidden, float("-inf"))
        return StepPlan(bias, slots, groups, self._rotation(positions, dtype))

    def _rotation(self, positions: Tensor, dtype: torch.dtype) -> Rotation | None:
        return rotation_at(positions, self.head_dim, self.rotary_base, dtype) if self.rotary_base else None


def _first_seen(seen: Tensor) -> int:
    """Return the first slot that any new token sees, (n, A, S) -> a number."""
    # Of equal ones argmax finds the first.
    return int(seen.flatten(0, 1).any(dim=0).to(torch.uint8).argmax())


class MultiFlowAttention(nn.Module):
    """Multi-head self-attention whose flows share all weights.

    With grouped-query attention (Ainslie et al., 2023, arXiv 2305.13245) each key and value serves a group of heads.

    T: tokens of a packed batch, H: width, h: heads, g: groups (h without grouping), d: width of a head (H / h).
    """

    def __init__(
        self, *, embed_dim: int, num_heads: int, dropout: float, bias: bool = True, key_value_heads: int = 0
    ) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.group_size = num_heads // (key_value_heads or num_heads)
        groups = num_heads // self.group_size
        self.qkv = Linear(embed_dim, (num_heads + 2 * groups) * (embed_dim // num_heads), bias=bias)
        self.output = Linear(embed_dim, embed_dim, bias=bias)

    def forward(self, x: Tensor, plan: PackedPlan) -> Tensor:
        """Attend as the plan says.

        Shape:
            x (T, H) -> (N, H). N: tokens that attend by the plan, all T but in the last layer of a training.
        """
        return self.prefill(x, plan)[0]

    def keys_values(self, x: Tensor, plan: PackedPlan) -> Tensor:
        """Return the keys and values of a packed batch (T, H) as (T, 2, g, d)."""
        return self._of_groups(self.project(x, plan.rotation))

    def prefill(self, x: Tensor, plan: PackedPlan) -> tuple[Tensor, Tensor]:
        """Attend as :meth:`forward` does, and return the keys and values too.

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
        # (N, h, d) -> (N, H)
        return self.output(attended.flatten(1)), self._of_groups(projected)

    def step(self, x: Tensor, plan: StepPlan, cache: LayerCache, queries: int) -> Tensor:
        """Attend from new tokens to the source, to what was generated, and to each other.

        All hypotheses of a sentence meet its slots in one product. The keys and values of a placeholder stand in the
        cache only until the next step writes over them.

        Args:
            x: states of the new tokens (N, A, H). N: sentences, A: new tokens of each.
            plan: what is added to the scores, and the rotation of the new tokens.
            cache: keys, rotated already, and values of this layer.
            queries: number of new tokens, the last ones, that attend.

        Returns:
            (N, queries, H).
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
        """Return the blocks of a plan, with what this layer adds to the scores in their biases.

        Args:
            projected: queries, keys and values (T, 3, h, d).
            plan: which attends block by block.
        """
        blocks: list[AttentionBlock] = plan.attention  # type: ignore[assignment]  # as the plan says
        return blocks

    def step_bias(self, query: Tensor, key: Tensor, plan: StepPlan) -> Tensor:
        """Return what is added to the scores of a step (N, 1 or h, queries, S).

        Args:
            query: of the last new tokens (N, h, queries, d).
            key: in the slots that are read (N, h, S, d).
            plan: of all new tokens.
        """
        return plan.bias[:, :, -query.size(2) :]

    def project(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        """Project (..., H) to queries, keys and values (..., 3, h, d), the first two rotated by their positions.

        Those of a group stand there once for each of its heads.
        """
        projected: Tensor = self.qkv(x)
        if self.group_size == 1:
            projected = projected.unflatten(-1, (3, self.num_heads, -1))
        else:
            groups = self.num_heads // self.group_size
            query, *shared = projected.unflatten(-1, (self.num_heads + 2 * groups, -1)).split(
                (self.num_heads, groups, groups), dim=-2
            )
            # (..., g, d) -> (..., h, d)
            projected = torch.stack(
                [query, *(each.repeat_interleave(self.group_size, dim=-2) for each in shared)], dim=-3
            )
        if rotation is None:
            return projected
        rotated, values = projected.split((2, 1), dim=-3)
        return torch.cat([rotate(rotated, rotation), values], dim=-3)

    def _of_groups(self, projected: Tensor) -> Tensor:
        # (T, 3, h, d) -> (T, 2, g, d)
        return projected[:, 1:, :: self.group_size]

    def _gathered(self, x: Tensor) -> Tensor:
        """Put the queries of a group's heads, or their biases, one behind the other, so that they share its keys.

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
    """Put the heads side by side, (N, h, A, d) -> (N, A, H)."""
    # (N, h, A, d) -> (N, A, h, d) -> (N, A, H)
    return x.transpose(1, 2).flatten(2)
