"""One attention module: full, prefilled and step by step, against plain attention."""

import math

import pytest
import torch

from s2sft_fairseq.modules.attention_pattern import PackedPlan, StepPlan
from s2sft_fairseq.modules.incremental_state import LayerCache
from s2sft_fairseq.modules.multi_flow_attention import MultiFlowAttention
from s2sft_fairseq.modules.visibility import AttentionBlock

WIDTH, HEADS = 12, 3


@pytest.fixture
def attention():
    torch.manual_seed(0)
    return MultiFlowAttention(embed_dim=WIDTH, num_heads=HEADS, dropout=0.0).double().eval()


def plain(attention, x, bias):
    """Attention of x (L, H) with a bias (h, L, L) on the scores, head by head."""
    size = WIDTH // HEADS
    query, key, value = attention.qkv(x).split(WIDTH, dim=1)
    heads = []
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        scores = query[:, part] @ key[:, part].t() / math.sqrt(size) + bias[head]
        heads.append(scores.softmax(dim=1) @ value[:, part])
    return attention.output(torch.cat(heads, dim=1))


def test_blocks_meet_the_keys_before_their_end(attention):
    x = torch.randn(2, 7, WIDTH, dtype=torch.float64)
    bias = torch.randn(2, HEADS, 7, 7, dtype=torch.float64)
    # The queries of the first three positions may not look behind them.
    bias[:, :, :3, 3:] = float("-inf")
    blocks = [AttentionBlock(0, 3, bias[:, :, :3, :3]), AttentionBlock(3, 7, bias[:, :, 3:])]
    expected = torch.stack([plain(attention, row, offset) for row, offset in zip(x, bias, strict=True)])
    torch.testing.assert_close(attention(x, PackedPlan(blocks, None)), expected)


def test_one_bias_for_all_heads_and_none(attention):
    x = torch.randn(2, 5, WIDTH, dtype=torch.float64)
    shared = torch.randn(2, 1, 5, 5, dtype=torch.float64)
    expected = torch.stack([plain(attention, row, b.expand(HEADS, 5, 5)) for row, b in zip(x, shared, strict=True)])
    torch.testing.assert_close(attention(x, PackedPlan([AttentionBlock(0, 5, shared)], None)), expected)
    nothing = torch.zeros(HEADS, 5, 5, dtype=torch.float64)
    expected = torch.stack([plain(attention, row, nothing) for row in x])
    torch.testing.assert_close(attention(x, PackedPlan([AttentionBlock(0, 5, None)], None)), expected)


def test_dropout_only_in_training():
    torch.manual_seed(0)
    attention = MultiFlowAttention(embed_dim=WIDTH, num_heads=HEADS, dropout=0.5)
    x, plan = torch.randn(2, 6, WIDTH), PackedPlan([AttentionBlock(0, 6, None)], None)
    attention.train()
    assert not torch.equal(attention(x, plan), attention(x, plan))
    attention.eval()
    torch.testing.assert_close(attention(x, plan), attention(x, plan), atol=0, rtol=0)


@pytest.mark.parametrize("heads_differ", [False, True])
@pytest.mark.parametrize("new", [1, 2, 3])
@pytest.mark.parametrize("beams", [1, 3])
def test_step_equals_plain_attention(attention, beams, new, heads_differ):
    """Sources of two lengths, hypotheses of their own each, several new tokens at a time."""
    attention.float()
    sentences, source_length, steps = 2, 4, 3
    rows, heads = sentences * beams, HEADS if heads_differ else 1
    source = torch.randn(sentences, source_length, WIDTH)
    generated = torch.randn(rows, steps * new, WIDTH)
    total = source_length + steps * new
    # A bias for each pair; the target sees what is before it, the shorter source hides its last position.
    bias = torch.randn(sentences, heads, total, total)
    bias[:, :, :source_length, source_length:] = float("-inf")
    bias += torch.full((total, total), float("-inf")).triu(1).masked_fill(torch.arange(total) < source_length, 0)
    bias[1, :, :, source_length - 1] = float("-inf")

    cache = LayerCache()
    block = AttentionBlock(0, source_length, bias[:, :, :source_length, :source_length])
    context = attention.prefill(source, PackedPlan([block], None), cache)
    cache.allocate(rows, steps * new)
    outputs = []
    for step in range(steps):
        newest = slice(step * new, (step + 1) * new)
        queries = slice(source_length + step * new, source_length + (step + 1) * new)
        to_source = bias[:, :, queries, :source_length].repeat(1, 1, beams, 1)
        to_generated = bias[:, :, queries, source_length : queries.stop].repeat_interleave(beams, dim=0)
        plan = StepPlan(to_source, to_generated, None)
        outputs.append(attention.step(generated[:, newest], plan, cache, step * new))
    target = torch.cat(outputs, dim=1)

    for row in range(rows):
        sentence = row // beams
        x = torch.cat([source[sentence], generated[row]])
        expected = plain(attention, x, bias[sentence].expand(HEADS, total, total))
        torch.testing.assert_close(context[sentence], expected[:source_length], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(target[row], expected[source_length:], atol=1e-5, rtol=1e-5)
