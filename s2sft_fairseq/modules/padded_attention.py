"""Attention over a packed batch in one call, with the examples padded to one length: for GPUs, whose time goes by the
number of kernels.

Only queries, keys and values are padded; all else in a layer works on the packed tokens. A mask from the visibility
rule is made once for all layers of a kind. PyTorch's memory-efficient kernel takes it, with dropout, and gives the
gradient of a relative position bias.

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
"""Of L: what the kernels need of a mask in any data type."""
BACKENDS = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Flash attention takes no mask, and cuDNN's makes a plan for each shape, which takes longer than the product."""


class PaddedPlan(NamedTuple):
    """What `padded_attention` needs to know of a packed batch."""

    places: Tensor
    """Of each token among the B * L padded ones (T,)."""
    bias: Tensor
    """Added to the scores (B, 1 or h, L, L), -inf where the rule forbids."""


def padded_plan(
    columns: PackedColumns,
    *,
    window: int = 0,
    relative_bias: Callable[[Tensor, Tensor], Tensor] | None = None,
    dtype: torch.dtype = torch.float32,
) -> PaddedPlan:
    """Work out what is visible, once for all layers of a kind; arguments as for `visibility.attention_blocks`."""
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
    # A query that sees nothing would have NaN for its weights, and so would the gradient of all keys.
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
        plan: of the batch.
        dropout: of the attention weights.
        at: numbers of the tokens whose result is wanted (N,); None: all T.

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
    """Rows (T, ...) at their places among zeros (P, ...). No place comes twice, so the gradient is a lookup."""

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
    """The rows (N, ...) at some places (N,) of (P, ...), none of them twice: the gradient of one is written once."""

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
