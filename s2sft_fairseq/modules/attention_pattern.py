"""How a layer attends beyond the visibility rule: within which window, and with which turn of queries and keys."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from s2sft_fairseq.modules.incremental_state import IncrementalState
from s2sft_fairseq.modules.relative_position import RelativePositionBias
from s2sft_fairseq.modules.rotary_position import Rotation, rotation_at
from s2sft_fairseq.modules.visibility import AttentionBlock, attention_blocks, within_window


class PackedPlan(NamedTuple):
    """What the layers of one pattern need to know of a packed batch."""

    blocks: list[AttentionBlock]
    rotation: Rotation | None


class StepPlan(NamedTuple):
    """What the layers of one pattern need to know of a step of decoding.

    N: sentences, K: beams, Q: new tokens, S: source positions, T: generated tokens in the cache, h: heads.
    """

    source_bias: Tensor
    """Added to the scores against the source (N, 1 or h, 1 or K * Q, S)."""
    generated_bias: Tensor | None
    """Added to those against the T + Q generated tokens (1 or N * K, 1 or h, Q, T + Q), or None."""
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
        positions: Tensor,
        steps: Tensor,
        groups: Tensor,
        block_lengths: Sequence[int],
        *,
        relative: RelativePositionBias | None,
        dtype: torch.dtype,
    ) -> PackedPlan:
        """Plan a packed batch: its columns (B, L) and blocks, the model's relative position bias and its data type."""

        def relative_bias(start: int, end: int) -> Tensor:
            return relative(positions[:, start:end], positions[:, :end])

        blocks = attention_blocks(
            positions,
            steps,
            groups,
            block_lengths,
            window=self.window,
            relative_bias=None if relative is None else relative_bias,
            dtype=dtype,
        )
        return PackedPlan(blocks, self._rotation(positions, dtype))

    def step(self, state: IncrementalState, positions: Tensor, *, relative: RelativePositionBias | None) -> StepPlan:
        """Plan a step of decoding, from the positions (N * K, Q) of the new tokens and the relative position bias."""
        return StepPlan(
            # The beams of a sentence are all at the same positions: (N * K, Q) -> (N, Q).
            self._source_bias(state, positions[:: state.beams], relative),
            self._generated_bias(state, positions.size(1), relative),
            self._rotation(positions, state.source_bias.dtype),
        )

    def _source_bias(self, state: IncrementalState, positions: Tensor, relative: RelativePositionBias | None) -> Tensor:
        bias = state.source_bias
        if relative is None and not self.window:
            return bias
        source = torch.arange(bias.size(-1), device=bias.device).unsqueeze(0)
        if relative is not None:
            # (N, h, Q, S) -> (N, h, K * Q, S)
            bias = bias + relative(positions, source).repeat(1, 1, state.beams, 1)
        if self.window:
            # (N, Q, S) -> (N, 1, Q, S) -> (N, 1, K * Q, S)
            near = within_window(positions, source, self.window).unsqueeze(1).repeat(1, 1, state.beams, 1)
            bias = bias.masked_fill(~near, float("-inf"))
        return bias

    def _generated_bias(
        self, state: IncrementalState, new: int, relative: RelativePositionBias | None
    ) -> Tensor | None:
        if new == 1 and relative is None and not self.window:
            return None
        # Distances are all that matters here: counted from the first generated token, they are those of every sentence.
        generated = torch.arange(state.num_cached + new, device=state.source_bias.device).unsqueeze(0)
        newest = generated[:, -new:]
        # In decoding order the visibility rule is plain causality: the placeholder comes last and is its own group.
        hidden = generated > newest.t()
        if self.window:
            hidden |= ~within_window(newest, generated, self.window)[0]
        bias = state.source_bias.new_zeros(1, 1, *hidden.shape) if relative is None else relative(newest, generated)
        return bias.masked_fill(hidden, float("-inf"))

    def _rotation(self, positions: Tensor, dtype: torch.dtype) -> Rotation | None:
        return rotation_at(positions, self.head_dim, self.rotary_base, dtype) if self.rotary_base else None
