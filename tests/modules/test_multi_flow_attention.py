"""One attention module: full, prefilled and step by step, compared with plain attention."""

import math

import pytest
import torch

from s2sft_fairseq.modules.incremental_state import IncrementalState, LayerCache, source_places
from s2sft_fairseq.modules.multi_flow_attention import AttentionPattern, MultiFlowAttention, PackedPlan, StepPlan
from s2sft_fairseq.modules.step_layout import next_token_layout
from s2sft_fairseq.modules.visibility import AttentionBlock

WIDTH, HEADS = 12, 3


@pytest.fixture
def attention():
    torch.manual_seed(0)
    return MultiFlowAttention(embed_dim=WIDTH, num_heads=HEADS, dropout=0.0).double().eval()


def plain(attention, x, bias):
    """Return the attention of x (L, H) with a bias (h, L, L) on the scores, head by head."""
    size = WIDTH // HEADS
    query, key, value = attention.qkv(x).split(WIDTH, dim=1)
    heads = []
    for head in range(HEADS):
        part = slice(head * size, (head + 1) * size)
        scores = query[:, part] @ key[:, part].t() / math.sqrt(size) + bias[head]
        heads.append(scores.softmax(dim=1) @ value[:, part])
    return attention.output(torch.cat(heads, dim=1))


def block(queries, keys, bias):
    return AttentionBlock(slice(*queries), slice(*keys), bias)


@pytest.mark.parametrize("training", [False, True])
def test_queries_attend_to_the_keys_of_their_block(attention, training):
    x = torch.randn(12, WIDTH, dtype=torch.float64)
    # Two examples, of 7 and 5 tokens.
    bias = torch.randn(HEADS, 12, 12, dtype=torch.float64)
    bias[:, :7, 7:] = bias[:, 7:, :7] = float("-inf")
    # The queries of the first three positions may not see later ones; those of the second example may.
    bias[:, :3, 3:] = float("-inf")
    blocks = [
        block((0, 3), (0, 3), bias[:, :3, :3]),
        block((3, 7), (0, 7), bias[:, 3:7, :7]),
        block((7, 12), (7, 12), bias[:, 7:, 7:]),
    ]
    with torch.set_grad_enabled(training):
        found = attention.train(training)(x, PackedPlan(blocks, None))
    torch.testing.assert_close(found, plain(attention, x, bias))


@pytest.mark.parametrize("training", [False, True])
def test_one_bias_for_all_heads_and_none(attention, training):
    x = torch.randn(5, WIDTH, dtype=torch.float64)
    shared = torch.randn(1, 5, 5, dtype=torch.float64)
    nothing = torch.zeros(HEADS, 5, 5, dtype=torch.float64)
    with torch.set_grad_enabled(training):
        for given, bias in ((shared, shared.expand(HEADS, 5, 5)), (None, nothing)):
            found = attention.train(training)(x, PackedPlan([block((0, 5), (0, 5), given)], None))
            torch.testing.assert_close(found, plain(attention, x, bias))


def test_dropout_only_in_training():
    torch.manual_seed(0)
    attention = MultiFlowAttention(embed_dim=WIDTH, num_heads=HEADS, dropout=0.5)
    x, plan = torch.randn(6, WIDTH), PackedPlan([block((0, 6), (0, 6), None)], None)
    attention.train()
    assert not torch.equal(attention(x, plan), attention(x, plan))
    attention.eval()
    torch.testing.assert_close(attention(x, plan), attention(x, plan), atol=0, rtol=0)


@pytest.mark.parametrize("heads_differ", [False, True])
@pytest.mark.parametrize("new", [1, 2, 3])
def test_step_equals_plain_attention(attention, new, heads_differ):
    """A source, then several new tokens at a time; the last two of each step are not kept in the cache."""
    sentences, source_length, steps, left_out = 2, 4, 3, 2
    heads = HEADS if heads_differ else 1
    x = torch.randn(sentences, source_length + steps * new, WIDTH, dtype=torch.float64)
    passing = torch.randn(sentences, steps, left_out, WIDTH, dtype=torch.float64)
    size = (sentences, HEADS, x.size(1) + left_out, WIDTH // HEADS)
    cache = LayerCache(x.new_empty(size), x.new_empty(size))

    # The source of the second sentence is shorter: it comes after the padding in the first slot.
    lengths = (source_length, source_length - 1)
    sources = [row[source_length - length : source_length] for row, length in zip(x, lengths, strict=True)]
    biases = [torch.randn(heads, length, length, dtype=torch.float64) for length in lengths]
    spans = ((0, lengths[0]), (lengths[0], sum(lengths)))
    plan = PackedPlan([block(span, span, bias) for span, bias in zip(spans, biases, strict=True)], None)
    context, keys_values = attention.prefill(torch.cat(sources), plan)
    torch.testing.assert_close(attention.keys_values(torch.cat(sources), plan), keys_values, atol=0, rtol=0)
    for row, states, offset in zip(sources, context.split(lengths), biases, strict=True):
        torch.testing.assert_close(states, plain(attention, row, offset.expand(HEADS, -1, -1)))
    cache.store(keys_values, source_places(lengths, source_length, x.device), slice(0, 2), source_length)

    for step in range(steps):
        start = source_length + step * new
        newest = torch.cat([x[:, start : start + new], passing[:, step]], dim=1)
        total = start + new + left_out
        bias = torch.randn(sentences, heads, new + left_out, total, dtype=torch.float64)
        # The second sentence attends alone or with the first.
        bias[1, :, :, 0] = float("-inf")
        everything = torch.cat([x[:, :start], newest], dim=1)
        for queries in (new + left_out, 1):
            groups = [(slice(0, 2), 0)] if step % 2 else [(slice(0, 1), 0), (slice(1, 2), 1)]
            found = attention.step(newest, StepPlan(bias, slice(start, total), groups, None), cache, queries)
            for row, states, offset in zip(everything, found, bias, strict=True):
                # Only the scores of the new tokens are compared.
                whole = torch.zeros(HEADS, total, total, dtype=torch.float64)
                whole[:, start:] = offset
                torch.testing.assert_close(states, plain(attention, row, whole)[-queries:])


@pytest.mark.parametrize("generated", [0, 1, 5])
def test_a_step_of_a_local_layer_reads_no_slot_before_its_windows(generated):
    """Sources are in groups of similar length; they end in the same slot, so all windows begin in one slot."""
    lengths, new, window = [40, 39, 20], 2, 6
    positions = torch.cat([torch.arange(length) for length in lengths])
    sizes = {"layers": 0, "heads": 2, "head_dim": 8, "num_tokens": 10, "hypotheses": 1, "dtype": torch.float32}
    state = IncrementalState.begin(positions, lengths, **sizes)
    for _ in range(generated):
        layout = next_token_layout(1, 1, placeholder=False, device=positions.device)
        state.positions[:, state.slots_of(layout)] = state.lengths.unsqueeze(1)
        state.keep(layout)
    layout = next_token_layout(1, 1, placeholder=True, device=positions.device)
    slots, ends = state.slots_of(layout), state.lengths.unsqueeze(1) + layout.offsets
    state.positions[:, slots] = ends
    seen = state.seen_by(layout, slots, state.read_by(layout))
    options = {"relative": None, "dtype": torch.float32}
    local, everywhere = (
        AttentionPattern(8, 0.0, window=each).step(state, seen, ends, slots, **options) for each in (window, 0)
    )
    # The first new token sees three positions before its own.
    assert local.groups == [(slice(0, 2), 40 + generated - 3), (slice(2, 3), 40 + generated - 3)]
    assert everywhere.groups == [(slice(0, 2), 0), (slice(2, 3), 20)]
    assert local.bias.size(-1) == 40 + generated + new
