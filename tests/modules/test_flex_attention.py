"""FlexAttention against attention in blocks; on a GPU its compiled form and its gradients too."""

import pytest
import torch

from s2sft_fairseq.modules.flex_attention import flex_plan, flexible_attention
from s2sft_fairseq.modules.packed_attention import packed_attention
from s2sft_fairseq.modules.relative_position import RelativePositionBias
from s2sft_fairseq.modules.visibility import PackedColumns, attention_blocks

LENGTHS = ((9, 4, 4), (5, 0, 0), (6, 3, 3), (1, 2))
HEADS, WIDTH = 2, 16
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def columns(device):
    """Positions, steps and groups of pseudo-masked examples, the last one without placeholders."""
    positions, steps, groups = [], [], []
    for context, content, *placeholders in LENGTHS:
        for first, length, flow in ((0, context, 0), (context, content, 1), *((context, n, 2) for n in placeholders)):
            number = torch.arange(length)
            positions.append(first + number)
            steps.append((number + 1) * (flow > 0))
            groups.append((number + 1) * (flow > 1))
    return [torch.cat(column).to(device) for column in (positions, steps, groups)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("window", [0, 4])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_equals_attention_in_blocks(device, window, with_bias):
    torch.manual_seed(0)
    positions, steps, groups = columns(device)
    given = PackedColumns(positions, positions, positions, steps, groups, LENGTHS)
    relative = RelativePositionBias(HEADS, 8, 16).to(device) if with_bias else None
    blocks = attention_blocks(given, window=window, relative_bias=relative)
    on_gpu = device == "cuda"  # on CPUs there are no gradients
    with torch.set_grad_enabled(on_gpu):
        qkv = torch.randn(len(positions), 3, HEADS, WIDTH, device=device, requires_grad=on_gpu)
        found = flexible_attention(qkv, flex_plan(given, window=window, relative=relative))
        expected = packed_attention(qkv, blocks)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    if on_gpu:
        factors = [qkv] if relative is None else [qkv, relative.weight]
        weights = torch.randn_like(found)
        ours, theirs = (torch.autograd.grad((weights * y).sum(), factors) for y in (found, expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
