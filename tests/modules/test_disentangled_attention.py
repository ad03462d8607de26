"""Disentangled attention compared with equation 4 of the DeBERTa paper, written pair by pair."""

import math

import numpy as np
import pytest
import torch
from tiny import ENCODERS, model_inputs, pack_example, packed_columns, tiny_form, tiny_model, words

from s2sft_fairseq.api.passes import EncoderPass
from s2sft_fairseq.models.inference import prepare_for_inference
from s2sft_fairseq.modules.disentangled_attention import (
    DisentangledAttention,
    DisentangledPattern,
    RelativeEmbeddings,
    relative_row,
)
from s2sft_fairseq.modules.visibility import PackedColumns, visible
from s2sft_fairseq.objectives.finetuning import Corruption
from s2sft_fairseq.objectives.packing import collate

WIDTH, HEADS = 12, 3
TERMS = [("c2p",), ("p2c",), ("c2p", "p2c")]


def batch_of_pairs():
    """Two pseudo-masked examples, whose placeholders have the positions of the target's tokens."""
    rng, form = np.random.default_rng(2), tiny_form()
    corruption = Corruption(target_mask_prob=0.5, random_prob=0.1, keep_prob=0.1)
    pairs = [(words(rng, source), words(rng, target)) for source, target in ((4, 3), (2, 5))]
    return collate([pack_example("pseudo_masked", *pair, form, corruption, rng) for pair in pairs])


@pytest.fixture
def columns():
    return packed_columns(batch_of_pairs())


def random_parts(terms, shared, buckets=4, furthest=5):
    """Return an attention and its table, in double precision, with weights that all matter."""
    torch.manual_seed(0)
    attention = DisentangledAttention(
        embed_dim=WIDTH, num_heads=HEADS, dropout=0.0, bias=True, terms=terms, shared=shared, table_dropout=0.0
    )
    relative = RelativeEmbeddings(WIDTH, furthest=furthest, buckets=buckets, layer_norm_eps=1e-7)
    for parameter in (*attention.parameters(), *relative.parameters()):
        torch.nn.init.normal_(parameter, std=0.5)
    return attention.double(), relative.double()


def by_pairs(attention, relative, x, columns):
    """Return the outputs of attention (T, H), from one query, one key and one head at a time."""
    table = relative.layer_norm(relative.embedding.weight)
    size = WIDTH // HEADS
    query, key, value = attention.qkv(x).split(WIDTH, dim=1)
    of_queries, of_keys, _ = attention.qkv(table).split(WIDTH, dim=1)
    if not attention.shared:
        of_queries = of_queries if attention.position_query is None else attention.position_query(table)
        of_keys = of_keys if attention.position_key is None else attention.position_key(table)
    sees = visible(columns.steps, columns.groups, columns.steps, columns.groups)
    examples = np.repeat(np.arange(len(columns.lengths)), [sum(lengths) for lengths in columns.lengths])
    places = columns.positions.tolist()
    outputs = []
    for i in range(len(x)):
        keys = [j for j in range(len(x)) if examples[i] == examples[j] and sees[i, j]]
        heads = []
        for head in range(HEADS):
            part = slice(head * size, (head + 1) * size)
            scores = []
            for j in keys:
                row = relative_row(places[i] - places[j], relative.furthest, relative.buckets)
                score = query[i, part] @ key[j, part]
                if "c2p" in attention.terms:
                    score = score + query[i, part] @ of_keys[row, part]
                if "p2c" in attention.terms:
                    score = score + key[j, part] @ of_queries[row, part]
                scores.append(score / math.sqrt((1 + len(attention.terms)) * size))
            heads.append(torch.stack(scores).softmax(0) @ value[keys, part])
        outputs.append(torch.cat(heads))
    return attention.output(torch.stack(outputs))


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("terms", TERMS)
def test_output_and_gradients_are_those_of_every_pair(columns, terms, shared):
    attention, relative = random_parts(terms, shared)
    x = torch.randn(len(columns.tokens), WIDTH, dtype=torch.float64, requires_grad=True)
    plan = DisentangledPattern(WIDTH // HEADS, 0.0, 0).packed(columns, relative=relative, dtype=torch.float64)
    leaves = [x, *attention.parameters(), *relative.parameters()]
    weights = torch.randn(len(x), WIDTH, dtype=torch.float64)
    expected = by_pairs(attention, relative, x, columns)
    gradients = torch.autograd.grad((expected * weights).sum(), leaves)
    found = attention(x, plan)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=0)
    for ours, theirs in zip(torch.autograd.grad((found * weights).sum(), leaves), gradients, strict=True):
        assert theirs.abs().max() > 1e-3 or theirs.ndim == 1  # softmax cancels the bias of keys
        torch.testing.assert_close(ours, theirs, atol=1e-10, rtol=0)
    # Without gradients other kernels are used; and only some tokens can attend.
    with torch.no_grad():
        torch.testing.assert_close(attention(x, plan), expected, atol=1e-10, rtol=0)
        some = torch.arange(1, len(x), 3)
        torch.testing.assert_close(attention(x, plan.restricted(some)), expected[some], atol=1e-10, rtol=0)


@pytest.mark.parametrize(("buckets", "furthest"), [(256, 512), (8, 40), (8, 16), (4, 100), (0, 12)])
def test_rows_are_those_of_transformers(buckets, furthest):
    name = "transformers.models.deberta_v2.modeling_deberta_v2"
    deberta = pytest.importorskip(name, reason="transformers is not installed")
    distances = torch.arange(-furthest - 30, furthest + 31)
    span = buckets or furthest
    theirs = deberta.make_log_bucket_position(distances, buckets, furthest).long() if buckets else distances
    expected = (theirs + span).clamp(0, 2 * span - 1)
    assert [relative_row(distance, furthest, buckets) for distance in distances.tolist()] == expected.tolist()
    relative = RelativeEmbeddings(4, furthest=furthest, buckets=buckets, layer_norm_eps=None)
    assert torch.equal(relative.rows(distances + 7, torch.tensor([7])), expected.unsqueeze(1))
    assert len(relative()) == 2 * span


def test_the_table_is_dropped_out_in_training(columns):
    attention, relative = random_parts(("c2p",), shared=True)
    attention.table_dropout.p = 0.5
    x = torch.randn(len(columns.tokens), WIDTH, dtype=torch.float64)
    plan = DisentangledPattern(WIDTH // HEADS, 0.0, 0).packed(columns, relative=relative, dtype=torch.float64)
    expected = by_pairs(attention, relative, x, columns)
    assert not torch.allclose(attention.train()(x, plan), expected, atol=1e-3)
    torch.testing.assert_close(attention.eval()(x, plan), expected, atol=1e-10, rtol=0)


def test_gradients_with_checkpointed_activations():
    batch, found = batch_of_pairs(), []
    for checkpointed in (False, True):
        model = tiny_model(5, **ENCODERS["deberta"], checkpoint_activations=checkpointed).double().train()
        model(**model_inputs(batch)).square().sum().backward()
        found.append([parameter.grad for parameter in model.parameters()])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-9, rtol=1e-9)


def test_a_prepared_model_does_not_project_its_table_again(monkeypatch, columns):
    model = tiny_model(5, **ENCODERS["deberta"])
    expected = model.encode(columns)
    prepare_for_inference(model, bf16=False, quantize="none")
    monkeypatch.setattr(DisentangledAttention, "_projected", None)
    torch.testing.assert_close(model.encode(columns), expected, atol=1e-5, rtol=1e-5)


def test_shown_weights_are_those_of_the_attention(columns):
    model = tiny_model(5, **ENCODERS["deberta"]).double()
    columns = PackedColumns(*(column[: sum(columns.lengths[0])] for column in columns[:5]), columns.lengths[:1])
    attention, seen = model.layers[0].attention, []
    attention.register_forward_hook(lambda _, arguments, output: seen.append((*arguments, output)))
    with torch.no_grad():
        weights = EncoderPass(model, None, None, "cpu").weights(columns, layer=0)
        x, plan, output = seen[0]
        # (T, h, d) -> (h, T, d)
        value = attention.project(x, plan.rotation)[:, 2].transpose(0, 1)
        attended = (weights.double() @ value).transpose(0, 1).flatten(1)
        torch.testing.assert_close(attention.output(attended), output, atol=1e-5, rtol=1e-5)
