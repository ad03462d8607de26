"""Flash attention over a packed batch: for GPUs, without padding or mask.

The kernel takes runs of queries, each with a run of keys, and supports two rules: all keys are visible, or attention is
causal, with the last query aligned to the last key. For a batch that is in order
(`s2sft_fairseq.objectives.packing.first_step`) three calls, each for all examples, implement the visibility rule:

* The context attends to itself; a causal context and the content are one call, which is causal.
* Content attends causally to context and content.
* Placeholders attend causally to the context and the content that they see. The own key of each placeholder is then
  merged in, by the log-sum-exp of the scores. The kernel's backward pass recomputes the weights from scores and
  log-sum-exp, so it gets the result and the log-sum-exp that include the own key.

A run without queries skips keys, and a run without keys skips queries, so that keys and values need no copies.

T: tokens of the batch, h: heads, d: width of a head, Q: queries of a call.
"""

from collections.abc import Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from s2sft_fairseq.modules.matmul import autocast_type
from s2sft_fairseq.modules.upload import upload
from s2sft_fairseq.modules.visibility import PackedColumns

DTYPES = (torch.float16, torch.bfloat16)
MULTIPLE, WIDEST = 8, 192
"""d must be a multiple of ``MULTIPLE`` up to ``WIDEST``; above, some GPUs lack the kernel's backward pass."""
_CONTEXT, _CONTENT, _PLACEHOLDERS = range(3)


class FlashCall(NamedTuple):
    """Runs of queries, each with the run of keys that it attends to. R: runs."""

    query_bounds: Tensor
    """Bounds of the runs of queries, int32 (R + 1,)."""
    key_bounds: Tensor
    """Bounds of the runs among the T keys, int32 (R + 1,)."""
    most_queries: int
    """Queries of the longest run."""
    most_keys: int
    """Keys of the longest run."""
    is_causal: bool
    with_own_key: bool
    """Whether each query also sees the key of its own token."""
    reach: int | None
    """Number of keys that a query sees before its aligned key and, if not causal, after it; None: all."""


class FlashPlan(NamedTuple):
    """The plan of `flash_attention` for a packed batch."""

    calls: Sequence[FlashCall]
    """The calls of the kernel. The first one has all T queries."""
    rows: Sequence[Tensor]
    """For each further call, the indices of the tokens that are its queries (Q,)."""
    dtype: torch.dtype
    """Data type of queries, keys and values."""


def is_available(device: torch.device) -> bool:
    """Return whether PyTorch's CUDA kernel runs on a device, without waiting for the GPU."""
    return (
        device.type == "cuda"
        and torch.version.hip is None  # another kernel, with other conventions
        and torch.backends.cuda.is_flash_attention_available()
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def flash_obstacle(
    columns: PackedColumns, *, head_dim: int, window: int, has_bias: bool, dtype: torch.dtype
) -> str | None:
    """Return what flash attention needs and a packed batch lacks; None: nothing.

    Args:
        columns: the columns of the batch.
        head_dim: width of a head, d.
        window: window of local attention; 0: no window.
        has_bias: whether there is a relative position bias.
        dtype: data type of the layers.
    """
    device = columns.positions.device
    if not is_available(device):
        return "an NVIDIA GPU of compute capability 8.0 or later, and a PyTorch that has the kernel"
    if has_bias:
        return "a model without relative position bias"
    if (used := autocast_type(dtype, device)) not in DTYPES:
        return f"16 bits (--bf16, --fp16 or --amp), not {used}".replace("torch.", "")
    if head_dim % MULTIPLE or head_dim > WIDEST:
        return f"heads whose width is a multiple of {MULTIPLE} up to {WIDEST}, not {head_dim}"
    if window == 1:
        return "--local-attention-window of at least 2"  # a placeholder's reach would be -1, which means all keys
    if columns.first_step is None:
        return "targets that are predicted from left to right, token by token"
    return None


def flash_plan(columns: PackedColumns, *, window: int = 0, dtype: torch.dtype) -> FlashPlan:
    """Plan a packed batch without obstacles, once for all layers with the same pattern; see `flash_obstacle`."""
    assert columns.first_step is not None
    device = columns.positions.device
    # (B, 3). B: examples.
    lengths = np.zeros((len(columns.lengths), 3), dtype=np.int64)
    lengths[:, : len(columns.lengths[0])] = columns.lengths
    context, content, placeholders = lengths.T
    none, behind = np.zeros_like(context), content + placeholders
    # Keys that the last placeholder sees. Each earlier one sees one token less, as in causal attention.
    seen = np.where(placeholders > 0, context + columns.first_step + placeholders - 2, 0)
    # For each call: the lengths of the runs of queries in each example, and of the runs of keys.
    causal = columns.causal_context
    if causal:  # one call for both
        context, content, behind = context + content, none, placeholders
        lengths = np.stack([context, content, placeholders], axis=1)
    runs = {
        _CONTEXT: ((context, behind, none), (context, none, behind)) if behind.any() else ((context,), (context,)),
        _CONTENT: ((content, none), (context + content, placeholders)),
        _PLACEHOLDERS: ((placeholders, none), (seen, lengths.sum(1) - seen)),
    }
    sections = [number for number in runs if number == _CONTEXT or lengths[:, number].any()]
    bounds = [[_bounds(each) for each in runs[number]] for number in sections]
    section = np.repeat(np.tile(np.arange(3), len(lengths)), lengths.ravel())
    rows = [np.flatnonzero(section == number) for number in sections[1:]]
    arrays = [*chain(*bounds), *rows]
    uploaded = upload(np.concatenate(arrays), device, torch.int32)
    on_device = iter(uploaded.split([len(array) for array in arrays]))
    reach = window // 2 if window else None
    calls = [
        FlashCall(
            query_bounds=next(on_device),
            key_bounds=next(on_device),
            most_queries=int(np.diff(of_queries).max()),
            most_keys=int(np.diff(of_keys).max()),
            is_causal=causal or number != _CONTEXT,
            with_own_key=number == _PLACEHOLDERS,
            # The position of a placeholder is one after that of its aligned key.
            reach=reach - 1 if reach is not None and number == _PLACEHOLDERS else reach,
        )
        for number, (of_queries, of_keys) in zip(sections, bounds, strict=True)
    ]
    return FlashPlan(calls, [each.long() for each in on_device], autocast_type(dtype, device))


def _bounds(lengths: Sequence[np.ndarray]) -> np.ndarray:
    """Return the bounds of runs, from their lengths in each example."""
    return np.concatenate([[0], np.stack(lengths, axis=1).ravel().cumsum()])


def flash_attention(qkv: Tensor, plan: FlashPlan, dropout: float = 0.0, *, at: Tensor | None = None) -> Tensor:
    """Attend from every token to what it sees.

    Args:
        qkv: queries, keys and values (T, 3, h, d).
        plan: the plan of the batch.
        dropout: dropout of the attention weights.
        at: indices of the tokens whose result is wanted, unique (N,); None: all T.

    Returns:
        (N, h, d).
    """
    attended: Tensor = _FlashAttention.apply(qkv.to(plan.dtype), plan, dropout, at)
    return attended


class _FlashAttention(torch.autograd.Function):
    """All calls of a plan as one operator, whose gradient is one tensor (T, 3, h, d)."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, plan: FlashPlan, dropout: float, at: Tensor | None) -> Tensor:
        query, key, value = qkv.unbind(1)
        context, *others = plan.calls
        attended, *saved = _forward(context, dropout, query, key, value)
        for call, rows in zip(others, plan.rows, strict=True):
            asking = qkv.index_select(0, rows)
            found, lse, *state = _forward(call, dropout, asking[:, 0], key, value)
            if call.with_own_key:
                found, lse, *weights = _add_own_key(found, lse, asking, dropout)
                state += weights
            attended.index_copy_(0, rows, found)
            saved += [asking, lse, *state]
        ctx.plan, ctx.dropout = plan, dropout
        ctx.save_for_backward(at, qkv, attended, *saved)
        return attended if at is None else attended.index_select(0, at)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        at, qkv, attended, *rest = ctx.saved_tensors
        saved, dropout = iter(rest), ctx.dropout
        if at is not None:
            gradient = torch.zeros_like(attended).index_copy_(0, at, gradient)
        query, key, value = qkv.unbind(1)
        context, *others = ctx.plan.calls
        gradients = _backward(context, dropout, gradient, query, key, value, attended, *islice(saved, 3))
        total = torch.stack(gradients, dim=1)
        for call, rows in zip(others, ctx.plan.rows, strict=True):
            outer, found = gradient.index_select(0, rows), attended.index_select(0, rows)
            asking, *state = islice(saved, 4)
            of_query, of_key, of_value = _backward(call, dropout, outer, asking[:, 0], key, value, found, *state)
            total[:, 1].add_(of_key)
            total[:, 2].add_(of_value)
            if call.with_own_key:  # no other query sees this key
                total.index_copy_(0, rows, _own_gradients(of_query, outer, asking, found, *islice(saved, 2)))
            else:
                total[:, 0].index_copy_(0, rows, of_query)
        return total, None, None, None


def _forward(call: FlashCall, dropout: float, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Return the result (Q, h, d), the log-sum-exp of the scores (h, Q), and two tensors with the state of dropout."""
    result: tuple[Tensor, ...] = torch.ops.aten._flash_attention_forward(
        query,
        key,
        value,
        call.query_bounds,
        call.key_bounds,
        call.most_queries,
        call.most_keys,
        dropout,
        call.is_causal,
        False,  # returns no weights
        window_size_left=call.reach,
        window_size_right=call.reach,
    )
    return result[:4]


def _backward(
    call: FlashCall,
    dropout: float,
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attended: Tensor,
    lse: Tensor,
    rng_state: Tensor,
    unused: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of queries (Q, h, d), keys and values (T, h, d); zeros for keys that no query sees."""
    result: tuple[Tensor, Tensor, Tensor] = torch.ops.aten._flash_attention_backward(
        gradient,
        query,
        key,
        value,
        attended,
        lse,
        call.query_bounds,
        call.key_bounds,
        call.most_queries,
        call.most_keys,
        dropout,
        call.is_causal,
        rng_state,
        unused,
        window_size_left=call.reach,
        window_size_right=call.reach,
    )
    return result


def _add_own_key(attended: Tensor, lse: Tensor, own: Tensor, dropout: float) -> tuple[Tensor, ...]:
    """Merge in the key of each query's own token, which no other query sees.

    Args:
        attended: result of the attention to the other keys (Q, h, d).
        lse: log-sum-exp of the scores of these keys (h, Q).
        own: queries, keys and values of the tokens (Q, 3, h, d).
        dropout: dropout of the attention weights.

    Returns:
        Result and log-sum-exp with the own key, and the weight of the own key (Q, h, 1) before and after dropout.
    """
    query, key, value = own.to(lse.dtype).unbind(1)
    # (Q, h) -> (h, Q)
    score = ((query * key).sum(-1) * query.size(-1) ** -0.5).t()
    # (h, Q) -> (Q, h, 1)
    weight = torch.sigmoid(score - lse).t().unsqueeze(-1)
    dropped = functional.dropout(weight, dropout)
    merged = torch.addcmul((1 - weight) * attended, dropped, value)
    return merged.to(attended.dtype), torch.logaddexp(lse, score).contiguous(), weight, dropped


def _own_gradients(
    of_query: Tensor, gradient: Tensor, own: Tensor, attended: Tensor, weight: Tensor, dropped: Tensor
) -> Tensor:
    """Return the gradient of ``own`` of `_add_own_key`; ``of_query`` is the queries' gradient from the other keys."""
    query, key, value = own.to(weight.dtype).unbind(1)
    # Derivative of the result by the score of the own key: dropped value minus weight times result.
    better = torch.addcmul(dropped * value, weight, attended, value=-1)
    slope = (gradient * better).sum(-1, keepdim=True) * query.size(-1) ** -0.5
    gradients = torch.addcmul(of_query, slope, key), slope * query, dropped * gradient
    return torch.stack(gradients, dim=1).to(own.dtype)
