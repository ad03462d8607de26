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
def test_step_equals_plain_attention(attention, new, heads_differ):
    """A source, then new tokens some at a time, of which the last two are left out of the cache again."""
    sentences, source_length, steps, left_out = 2, 4, 3, 2
    heads = HEADS if heads_differ else 1
    x = torch.randn(sentences, source_length + steps * new, WIDTH, dtype=torch.float64)
    passing = torch.randn(sentences, steps, left_out, WIDTH, dtype=torch.float64)
    cache = LayerCache((sentences, HEADS, x.size(1) + left_out, WIDTH // HEADS), x)

    source = x[:, :source_length]
    bias = torch.randn(sentences, heads, source_length, source_length, dtype=torch.float64)
    plan = PackedPlan([AttentionBlock(0, source_length, bias)], None)
    context, key, value = attention.prefill(source, plan)
    torch.testing.assert_close(attention.keys_values(source, plan), (key, value), atol=0, rtol=0)
    for row, states, offset in zip(source, context, bias, strict=True):
        torch.testing.assert_close(states, plain(attention, row, offset.expand(HEADS, -1, -1)))
    cache.store(key, value, slice(0, sentences), source_length)

    for step in range(steps):
        start = source_length + step * new
        newest = torch.cat([x[:, start : start + new], passing[:, step]], dim=1)
        total = start + new + left_out
        bias = torch.randn(sentences, heads, new + left_out, total, dtype=torch.float64)
        # The second sentence is shorter, and attends alone or with the first.
        bias[1, :, :, 0] = float("-inf")
        everything = torch.cat([x[:, :start], newest], dim=1)
        for queries in (new + left_out, 1):
            groups = [(slice(0, 2), 0)] if step % 2 else [(slice(0, 1), 0), (slice(1, 2), 1)]
            found = attention.step(newest, StepPlan(bias, start, groups, None), cache, queries)
            for row, states, offset in zip(everything, found, bias, strict=True):
                # Only the scores of the new tokens count.
                whole = torch.zeros(HEADS, total, total, dtype=torch.float64)
                whole[:, start:] = offset
                torch.testing.assert_close(states, plain(attention, row, whole)[-queries:])
