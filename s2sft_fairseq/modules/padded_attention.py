"""Attention over a packed batch in one call, with the examples padded to one length.

This is for GPUs, where the number of kernels determines the time. Only queries, keys and values are padded; the rest of
a layer works on the packed tokens. The mask from the visibility rule is computed once for all layers with the same
pattern. PyTorch's memory-efficient kernel supports it with dropout, and with the gradient of a relative position bias.

T: tokens of the batch, B: examples, L: length that they are padded to, h: heads, d: width of a head.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from s2sft_fairseq.modules.upload import upload
from s2sft_fairseq.modules.visibility import PackedColumns, visible, within_window

MULTIPLE = 16
"""L is a multiple of this: the kernels require it of a mask in any data type."""
BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Flash attention supports no mask, and cuDNN plans each new shape, which takes longer than the attention itself."""


class PaddedPlan(NamedTuple):
    """The plan of `padded_attention` for a packed batch."""

    places: Tensor
    """Index of each token among the B * L padded places (T,)."""
    bias: Tensor
    """Added to the scores (B, 1 or h, L, L), -inf where the query does not see the key."""


def padded_plan(
    columns: PackedColumns,
    *,
    window: int = 0,
    relative_bias: Callable[[Tensor, Tensor], Tensor] | None = None,
    dtype: torch.dtype = torch.float32,
) -> PaddedPlan:
    """Plan a packed batch, once for all layers with the same pattern; see `visibility.attention_blocks`."""
    device = columns.positions.device
    totals = [sum(sections) for sections in columns.lengths] or [0]
    length = max(1, -(-max(totals) // MULTIPLE)) * MULTIPLE
    lengths = upload(totals, device)
    examples = torch.arange(len(totals), device=device).repeat_interleave(lengths, output_size=sum(totals))
    within = torch.arange(sum(totals), device=device) - (lengths.cumsum(0) - lengths)[examples]
    places = examples * length + within

    def padded(column: Tensor) -> Tensor:
        # (T,) -> (B, L)
        return column.new_zeros(len(totals) * length).index_copy(0, places, column).view(len(totals), length)

    positions, steps, groups = map(padded, (columns.positions, columns.steps, columns.groups))
    allowed = visible(steps, groups, steps, groups)
    if window:
        allowed &= within_window(positions, positions, window)
    inside = torch.arange(length, device=device) < lengths[:, None]
    allowed &= inside[:, None]
    # A query that sees nothing would get NaN weights, and then the gradients of all keys would be NaN.
    allowed[:, :, 0] |= ~inside
    # (B, L, L) -> (B, 1, L, L), for every head
    forbidden = ~allowed.unsqueeze(1)
    if relative_bias is None:
        bias = torch.zeros_like(forbidden, dtype=dtype)
    else:
        bias = relative_bias(positions, positions).to(dtype)
    return PaddedPlan(places, bias.masked_fill(forbidden, float("-inf")))


def padded_attention(qkv: Tensor, plan: PaddedPlan, dropout: float = 0.0, *, at: Tensor | None = None) -> Tensor:
    """Attend from every token to what it sees.

    Args:
        qkv: queries, keys and values (T, 3, h, d).
        plan: the plan of the batch.
        dropout: dropout of the attention weights.
        at: indices of the tokens whose result is wanted (N,); None: all T.

    Returns:
        (N, h, d).
    """
    count, length = plan.bias.size(0), plan.bias.size(-1)
    # (T, 3, h, d) -> (B * L, 3, h, d) -> (B, L, 3, h, d) -> three times (B, h, L, d)
    padded: Tensor = _Pad.apply(qkv, plan.places, count * length)
    query, key, value = padded.unflatten(0, (count, length)).permute(2, 0, 3, 1, 4).unbind(0)
    with sdpa_kernel(BACKENDS):
        attended = scaled_dot_product_attention(query, key, value, attn_mask=plan.bias, dropout_p=dropout)
    # (B, h, L, d) -> (B * L, h, d) -> (N, h, d)
    places = plan.places if at is None else plan.places[at]
    wanted: Tensor = _Take.apply(attended.transpose(1, 2).flatten(0, 1), places)
    return wanted


class _Pad(torch.autograd.Function):
    """Copies rows (T, ...) to their places among zeros (P, ...). Places are unique, so the gradient is a lookup."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(places)
        return rows.new_zeros(count, *rows.shape[1:]).index_copy_(0, places, rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (places,) = ctx.saved_tensors
        return gradient.index_select(0, places), None, None


class _Take(torch.autograd.Function):
    """Selects the rows (N, ...) at some places (N,) of (P, ...). Places are unique: no gradients need adding."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.count = len(rows)
        return rows.index_select(0, places)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (places,) = ctx.saved_tensors
        return gradient.new_zeros(ctx.count, *gradient.shape[1:]).index_copy_(0, places, gradient), None
