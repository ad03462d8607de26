"""Test flash attention on the present GPU before it is used.

`flash_attention` calls operators that are not part of PyTorch's public interface. Before a model uses them, their
results on a small batch are compared with those of padded attention, whose operator is public.
"""

import functools
from itertools import chain

import torch
from torch import Tensor

from s2sft_fairseq.modules.flash_attention import flash_attention, flash_plan
from s2sft_fairseq.modules.padded_attention import padded_attention, padded_plan
from s2sft_fairseq.modules.upload import upload
from s2sft_fairseq.modules.visibility import PackedColumns

LENGTHS = ((5, 3, 3), (40, 9, 9), (1, 0, 0), (17, 1, 1))
"""Lengths of context, content and placeholders of each example."""
HEADS = 2
MOST_STEPS = 16
"""Largest difference of results, in rounding steps of the data type at the largest value. Rounding makes a difference
of a few steps, a wrong visibility rule hundreds."""


@functools.cache
def flash_failure(device: torch.device, *, head_dim: int, window: int, dtype: torch.dtype) -> str | None:
    """Return what flash attention lacks on a device; None: its results and gradients equal those of padded attention.

    The host waits for the GPU at the first call; the answer is cached.

    Args:
        device: a GPU.
        head_dim: width of a head.
        window: window of local attention; 0: no window.
        dtype: data type of the products, of 16 bits.
    """
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast("cuda", enabled=False):
        columns = _columns(device)
        numbers = torch.Generator().manual_seed(1)
        # (T, 3, h, d) and (T, h, d)
        qkv = torch.randn(len(columns.tokens), 3, HEADS, head_dim, generator=numbers).to(device, dtype)
        outer = torch.randn(len(columns.tokens), HEADS, head_dim, generator=numbers).to(device, dtype)
        expected_plan = padded_plan(columns, window=window, dtype=dtype)
        expected = _with_gradient(padded_attention(leaf := qkv.clone().requires_grad_(), expected_plan), leaf, outer)
        try:
            plan = flash_plan(columns, window=window, dtype=dtype)
            found = _with_gradient(flash_attention(leaf := qkv.clone().requires_grad_(), plan), leaf, outer)
        except (RuntimeError, TypeError, AttributeError) as error:
            return f"operators that work: {error}"
        for ours, theirs in zip(found, expected, strict=True):
            scale, difference = theirs.abs().max(), (ours - theirs).abs().max()
            if not float(difference) <= MOST_STEPS * torch.finfo(dtype).eps * float(scale):
                return f"the results of padded attention, but differs from them by up to {float(difference):.2g} here"
    return None


def _columns(device: torch.device) -> PackedColumns:
    """Return a batch that is in order; see `s2sft_fairseq.objectives.packing.first_step`."""
    steps = chain.from_iterable(
        [0] * context + list(range(1, content + 1)) + list(range(1, placeholders + 1))
        for context, content, placeholders in LENGTHS
    )
    positions = chain.from_iterable(
        list(range(context + content)) + list(range(context, context + placeholders))
        for context, content, placeholders in LENGTHS
    )
    groups = chain.from_iterable(
        [0] * (context + content) + list(range(1, placeholders + 1)) for context, content, placeholders in LENGTHS
    )
    position, step, group = (upload(list(column), device) for column in (positions, steps, groups))
    return PackedColumns(position, position, position, step, group, LENGTHS, first_step=1)


def _with_gradient(attended: Tensor, leaf: Tensor, outer: Tensor) -> tuple[Tensor, Tensor]:
    """Return the result and the gradient of ``leaf``, both in float32."""
    (gradient,) = torch.autograd.grad(attended, leaf, outer)
    return attended.detach().float(), gradient.float()
