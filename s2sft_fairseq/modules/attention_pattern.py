"""How a layer attends beyond the visibility rule: within which window, and with which turn of queries and keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from s2sft_fairseq.modules.incremental_state import IncrementalState
from s2sft_fairseq.modules.packed_attention import FlexPlan, flex_plan
from s2sft_fairseq.modules.positions import RelativePositionBias, Rotation, rotation_at
from s2sft_fairseq.modules.visibility import AttentionBlock, PackedColumns, attention_blocks, within_window


class PackedPlan(NamedTuple):
    """What the layers of one pattern need to know of a packed batch."""

    blocks: list[AttentionBlock]
    rotation: Rotation | None
    flex: FlexPlan | None = None
    """Attend by FlexAttention, not block by block."""


class StepPlan(NamedTuple):
    """What the layers of one pattern need to know of a step of decoding.

    N: sentences, A: new tokens of each, S: slots in use, h: heads.
    """

    bias: Tensor
    """Added to the scores of the new tokens against the slots and each other (N, 1 or h, A, S + A)."""
    start: int
    """S: the new keys and values go behind them."""
    groups: Sequence[tuple[slice, int]]
    """Sentences that attend together, and the first slot that any of them sees."""
    rotation: Rotation | None


@dataclass(frozen=True)
class AttentionPattern:
    """The settings of one kind of layer; what layers of equal patterns need is worked out once for all of them."""

    head_dim: int
    rotary_base: float
    """0: queries and keys are not turned."""
    window: int
    """A query sees keys at most ``window // 2`` positions away; 0: at any distance."""

    def packed(
        self,
        columns: PackedColumns,
        *,
        relative: RelativePositionBias | None,
        dtype: torch.dtype,
        flexible: bool = False,
    ) -> PackedPlan:
        """Plan a packed batch.

        Args:
            columns: of the batch.
            relative: the model's relative position bias.
            dtype: the data type of the layers.
            flexible: attend by FlexAttention.
        """
        rotation = self._rotation(columns.positions, dtype)
        if flexible:
            return PackedPlan([], rotation, flex_plan(columns, window=self.window, relative=relative))
        blocks = attention_blocks(columns, window=self.window, relative_bias=relative, dtype=dtype)
        return PackedPlan(blocks, rotation)

    def step(
        self,
        state: IncrementalState,
        seen: Tensor,
        positions: Tensor,
        *,
        relative: RelativePositionBias | None,
        dtype: torch.dtype,
    ) -> StepPlan:
        """Plan a step of decoding.

        Args:
            state: the incremental state before it.
            seen: what the new tokens see (N, A, S + A).
            positions: their position ids (N, A).
            relative: the model's relative position bias.
            dtype: the data type of the layers.
        """
        key_positions = torch.cat([state.positions, positions], dim=1)
        if self.window:
            seen = seen & within_window(positions, key_positions, self.window)
        # (N, A, S + A) -> (N, 1, A, S + A), for every head
        hidden = ~seen.unsqueeze(1)
        bias = torch.zeros_like(hidden, dtype=dtype) if relative is None else relative(positions, key_positions)
        bias = bias.masked_fill(hidden, float("-inf"))
        return StepPlan(bias, state.used, state.groups, self._rotation(positions, dtype))

    def _rotation(self, positions: Tensor, dtype: torch.dtype) -> Rotation | None:
        return rotation_at(positions, self.head_dim, self.rotary_base, dtype) if self.rotary_base else None
