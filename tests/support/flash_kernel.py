"""CPU versions of the two operators of flash attention, which PyTorch has for CUDA only: run by run, with all scores.

They follow CUDA's conventions, and raise where CUDA fails or reads out of bounds. They take 16, 32 and 64 bits. The
backward operator draws dropout again from the seed that the forward operator leaves in ``rng_state``, as CUDA's does.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import _scoped_library

from s2sft_fairseq.modules import flash_attention

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


@contextmanager
def emulated_kernel() -> Iterator[None]:
    """Give the CPU the operators, and let every other device use them for attention, also with 32 and 64 bits."""
    with _scoped_library("aten", "IMPL") as library, pytest.MonkeyPatch.context() as patch:
        library.impl("_flash_attention_forward", forward, "CPU")
        library.impl("_flash_attention_backward", backward, "CPU")
        patch.setattr(flash_attention, "DTYPES", DTYPES)
        patch.setattr(flash_attention, "is_available", lambda device: True)
        patch.setattr("s2sft_fairseq.models.unilm.flash_failure", lambda device, **settings: None)
        yield


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    **options: Any,
) -> tuple[Tensor, ...]:
    """``aten._flash_attention_forward``; queries that see no key get zeros, and infinity as their log-sum-exp."""
    check(cum_seq_q, cum_seq_k, max_q, max_k, query, key, value)
    assert not return_debug_mask
    state = torch.randint(1 << 62, (2,))
    attended = query.new_full(query.shape, math.nan)
    logsumexp = attended.new_full((query.size(1), len(query)), math.nan, dtype=wide(query))
    for queries, keys, visible, kept in runs(query, cum_seq_q, cum_seq_k, dropout_p, is_causal, state, options):
        scores = scored(query[queries], key[keys], visible)
        lse = scores.logsumexp(-1)
        weights = (scores - lse.nan_to_num(neginf=0).unsqueeze(-1)).exp() * kept
        attended[queries] = torch.einsum("hqk,khd->qhd", weights, value[keys].to(wide(query))).to(query.dtype)
        logsumexp[:, queries] = lse.nan_to_num(neginf=math.inf)
    return attended, logsumexp, state, torch.empty(0), torch.empty(0)


def backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Tensor,
    unused: Tensor,
    **options: Any,
) -> tuple[Tensor, ...]:
    """``aten._flash_attention_backward``; the weights follow from scores and ``logsumexp`` alone."""
    check(cum_seq_q, cum_seq_k, max_q, max_k, query, key, value, out, grad_out)
    assert logsumexp.is_contiguous() and logsumexp.shape == (query.size(1), len(query))
    assert logsumexp.dtype == wide(query)
    gradients = [torch.full(x.shape, math.nan, dtype=x.dtype) for x in (query, key, value)]
    for queries, keys, visible, kept in runs(query, cum_seq_q, cum_seq_k, dropout_p, is_causal, rng_state, options):
        q, k, v, outer, attended = (
            x[rows].to(wide(query))
            for x, rows in ((query, queries), (key, keys), (value, keys), (grad_out, queries), (out, queries))
        )
        weights = (scored(q, k, visible) - logsumexp[:, queries].unsqueeze(-1)).exp()
        # (Q, h) -> (h, Q, 1)
        delta = (outer * attended).sum(-1).t().unsqueeze(-1)
        slopes = weights * (torch.einsum("qhd,khd->hqk", outer, v) * kept - delta) / math.sqrt(query.size(-1))
        gradients[0][queries] = torch.einsum("hqk,khd->qhd", slopes, k).to(query.dtype)
        gradients[1][keys] = torch.einsum("hqk,qhd->khd", slopes, q).to(query.dtype)
        gradients[2][keys] = torch.einsum("hqk,qhd->khd", weights * kept, outer).to(query.dtype)
    return tuple(gradients)


def check(query_bounds: Tensor, key_bounds: Tensor, max_q: int, max_k: int, query: Tensor, *others: Tensor) -> None:
    """Raise where CUDA's operators raise, launch nothing, or skip what is beyond the longest run."""
    for bounds, longest, tensor in ((query_bounds, max_q, query), (key_bounds, max_k, others[0])):
        assert bounds.dtype == torch.int32 and bounds.is_contiguous() and bounds.ndim == 1
        assert bounds[0] == 0 and bounds[-1] == len(tensor)
        assert bounds.diff().min() >= 0 and bounds.diff().max() == longest > 0
    assert len(query_bounds) == len(key_bounds)
    assert query.dtype in DTYPES and query.size(-1) % 8 == 0 and query.size(-1) <= 256
    for tensor in (query, *others):
        assert tensor.dtype == query.dtype and tensor.shape[1:] == query.shape[1:] and tensor.stride(-1) == 1


def runs(
    query: Tensor,
    query_bounds: Tensor,
    key_bounds: Tensor,
    dropout: float,
    is_causal: bool,
    state: Tensor,
    options: dict[str, Any],
) -> Iterator[tuple[slice, slice, Tensor, Tensor | float]]:
    """Yield for each run: queries, keys, which keys each query sees (Q, K), and the dropout of ones (h, Q, K).

    ``options`` are the operators' other arguments.
    """
    left, right = (options.pop(f"window_size_{side}", None) for side in ("left", "right"))
    assert all(value is None for value in options.values())
    right = 0 if is_causal else right
    generator = torch.Generator().manual_seed(int(state[0]))
    bounds = [pairwise(each.tolist()) for each in (query_bounds, key_bounds)]
    for (first_query, last_query), (first_key, last_key) in zip(*bounds, strict=True):
        count, met = last_query - first_query, last_key - first_key
        # The distance from a query to the key that it is aligned with; the last query is aligned with the last key.
        distance = torch.arange(met) - torch.arange(count).unsqueeze(1) - (met - count)
        visible = torch.ones_like(distance, dtype=torch.bool)
        if left is not None and left >= 0:
            visible &= distance >= -left
        if right is not None and right >= 0:
            visible &= distance <= right
        kept: Tensor | float = 1.0
        if dropout:
            draws = torch.rand(query.size(1), count, met, generator=generator)
            kept = (draws >= dropout).to(wide(query)) / (1 - dropout)
        yield slice(first_query, last_query), slice(first_key, last_key), visible, kept


def scored(query: Tensor, key: Tensor, visible: Tensor) -> Tensor:
    """Return the scores (h, Q, K) of queries (Q, h, d) and keys (K, h, d), -inf where a key is not visible."""
    dtype = wide(query)
    scores = torch.einsum("qhd,khd->hqk", query.to(dtype), key.to(dtype)) / math.sqrt(query.size(-1))
    return scores.masked_fill(~visible, -math.inf)


def wide(tensor: Tensor) -> torch.dtype:
    """Return the type of sums and of log-sum-exps."""
    return torch.promote_types(tensor.dtype, torch.float32)
