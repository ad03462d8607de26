"""Attention padded to one length, in one call: the same as block by block, including gradients."""

import pytest
import torch

from s2sft_fairseq.modules.packed_attention import packed_attention
from s2sft_fairseq.modules.padded_attention import MULTIPLE, padded_attention, padded_plan
from s2sft_fairseq.modules.positions import RelativePositionBias
from s2sft_fairseq.modules.visibility import PackedColumns, attention_blocks, blocks_at

HEADS, WIDTH = 3, 4
# Lengths of context, content and placeholders of each example: pseudo-masked with spans, causal, a context alone, one
# longer than the multiple, and one without a context.
LENGTHS = [(4, 3, 2, 2), (5, 2), (6,), (14, 5, 5), (0, 3)]


def columns(causal=False):
    """Content has group 0 and a factorization step for each token; each placeholder is a group of its own."""
    positions, steps, groups = [], [], []
    for context, *others in LENGTHS:
        content, *runs = [*others, 0]
        for first, length, flow in ((0, context, 0), (context, content, 1)):
            positions.append(first + torch.arange(length))
            steps.append((torch.arange(length) + 1) * flow)
            groups.append(torch.zeros(length, dtype=torch.int64))
        for number, length in enumerate(runs):
            positions.append(context + torch.arange(length))
            steps.append(torch.arange(length) + 1)
            groups.append(torch.arange(length) + 1 + 10 * number)
    position, step, group = map(torch.cat, (positions, steps, groups))
    given = PackedColumns(position, position, position, step, group, LENGTHS)
    return given.with_causal_context() if causal else given


def relative_bias(dtype):
    torch.manual_seed(3)
    return RelativePositionBias(HEADS, 8, 16).to(dtype)


def random_qkv(dtype):
    return torch.randn(
        sum(map(sum, LENGTHS)), 3, HEADS, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    ).to(dtype)


TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 2e-2}  # a few roundings of short sums


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("is_relative", [False, True])
@pytest.mark.parametrize("causal", [False, True], ids=["both directions", "causal"])
@pytest.mark.parametrize("at", [None, torch.tensor([0, 4, 5, 11, 12, 20, 30, 44])], ids=["all", "some"])
def test_equals_attention_in_blocks(dtype, window, is_relative, causal, at):
    """Outputs, and the gradients of queries, keys and values and of the relative bias."""
    given = columns(causal)
    found = []
    for plan in (padded_plan, attention_blocks):
        relative = relative_bias(dtype) if is_relative else None
        qkv = random_qkv(dtype).requires_grad_()
        planned = plan(given, window=window, relative_bias=relative, dtype=dtype)
        if plan is padded_plan:
            attended = padded_attention(qkv, planned, at=at)
        else:
            attended = packed_attention(qkv, planned if at is None else blocks_at(at, planned), at=at)
        outer = torch.randn(attended.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)
        factors = [qkv] if relative is None else [qkv, relative.weight]
        found.append([attended, *torch.autograd.grad((attended * outer).sum(), factors)])
    for number, (ours, theirs) in enumerate(zip(*found, strict=True)):
        assert ours.isfinite().all()
        # The gradient of the relative bias is a sum of hundreds of scores, each rounded.
        tolerance = TOLERANCES[dtype] * (10 if number == 2 else 1)
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def test_all_lengths_are_multiples():
    """The mask's lengths too, as the kernels of GPUs need."""
    plan = padded_plan(columns())
    assert plan.bias.shape == (len(LENGTHS), 1, 2 * MULTIPLE, 2 * MULTIPLE)
    assert len(plan.places.unique()) == sum(map(sum, LENGTHS))


def test_dropout():
    """Weights are dropped at the given rate, and the others are scaled accordingly."""
    lengths = [(16,)] * 50
    zeros = torch.zeros(16 * 50, dtype=torch.int64)
    position = torch.arange(16).repeat(50)
    plan = padded_plan(PackedColumns(position, position, position, zeros, zeros, lengths))
    qkv = torch.zeros(16 * 50, 3, 1, 16)
    qkv[:, 2, 0] = torch.eye(16).repeat(50, 1)  # makes the outputs the weights, 1/16 each before dropout
    torch.manual_seed(0)
    weights = padded_attention(qkv, plan, dropout=0.25).flatten()
    kept = weights != 0
    torch.testing.assert_close(weights[kept], torch.full_like(weights[kept], 1 / 16 / 0.75))
    # 12,800 draws: the standard deviation of the share is 0.004.
    assert kept.float().mean() == pytest.approx(0.75, abs=0.02)


def test_an_empty_batch():
    empty = torch.zeros(0, dtype=torch.int64)
    plan = padded_plan(PackedColumns(empty, empty, empty, empty, empty, []))
    assert padded_attention(torch.zeros(0, 3, HEADS, WIDTH), plan).shape == (0, HEADS, WIDTH)
