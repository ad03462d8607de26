"""Attention over a packed batch in one call, for CUDA: FlexAttention with the visibility rule as its ``mask_mod``.

FlexAttention (Dong et al., 2024, arXiv 2412.05496) leaves out every tile of scores in which nothing is visible, so that
examples side by side cost no more than each alone. It has no dropout.

T: tokens of the batch, h: heads, d: width of a head.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from s2sft_fairseq.modules.relative_position import RelativePositionBias
from s2sft_fairseq.modules.visibility import PackedColumns, is_near, sees


class FlexPlan(NamedTuple):
    """What `flexible_attention` needs to know of a packed batch."""

    mask: BlockMask
    add_bias: Callable[..., Tensor] | None


def flex_plan(columns: PackedColumns, *, window: int = 0, relative: RelativePositionBias | None = None) -> FlexPlan:
    """Work out what is visible, once for all layers of a kind.

    Args:
        columns: of the batch.
        window: of local attention; 0: none.
        relative: the model's relative position bias.
    """
    positions, steps, groups = columns.positions, columns.steps, columns.groups
    lengths = torch.tensor([sum(blocks) for blocks in columns.lengths], device=positions.device)
    examples = torch.arange(len(lengths), device=positions.device).repeat_interleave(lengths)

    def is_seen(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = sees(steps[query], groups[query], steps[key], groups[key])
        if window:
            seen = seen & is_near(positions[query], positions[key], window)
        return seen & (examples[query] == examples[key])

    def add_bias(score: Tensor, _batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score + relative.weight[head, relative.bucket(positions[key] - positions[query])]

    compiled = positions.device.type == "cuda"
    mask = create_block_mask(is_seen, None, None, len(positions), len(positions), positions.device, _compile=compiled)
    return FlexPlan(mask, None if relative is None else add_bias)


def flexible_attention(qkv: Tensor, plan: FlexPlan) -> Tensor:
    """Attend from every token to what it sees.

    Shape:
        qkv (T, 3, h, d) -> (T, h, d).
    """
    # (T, 3, h, d) -> three times (1, h, T, d)
    query, key, value = qkv.permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
    attend = _compiled() if qkv.device.type == "cuda" else flex_attention
    attended = attend(query, key, value, score_mod=plan.add_bias, block_mask=plan.mask)
    # (1, h, T, d) -> (T, h, d)
    return attended.squeeze(0).transpose(0, 1)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    return torch.compile(flex_attention, dynamic=True)
