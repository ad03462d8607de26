"""Attention of packed batches, block by block and by FlexAttention, compared with plain dense attention."""

import math

import pytest
import torch

from s2sft_fairseq.modules import packed_attention as module
from s2sft_fairseq.modules.packed_attention import flex_mask, flexible_attention, packed_attention
from s2sft_fairseq.modules.visibility import AttentionBlock, PackedColumns, attention_blocks, blocks_at

HEADS, SIZE = 3, 4
# Two examples of 7 and 5 tokens: queries and keys of each block.
SPANS = [((0, 4), (0, 4)), ((4, 7), (0, 7)), ((7, 9), (7, 9)), ((9, 12), (7, 12))]
# Windows of local attention: keys on both sides of the queries, and shared by several blocks.
WINDOWS = [((0, 3), (0, 5)), ((3, 6), (1, 8)), ((6, 12), (4, 12))]
# Windows of placeholders: the near tokens of their example are in several places.
GAPS = [((0, 3), [0, 1, 2, 5, 7]), ((3, 7), (0, 7)), ((7, 12), [3, 7, 8, 10, 11])]
TOKENS = 12
# How many heads have their own bias in each block; 0: there is no bias.
BIASES = {"none": 0, "for all heads": 1, "for each head": HEADS}


@pytest.fixture(autouse=True, params=[module.TILE, 8 * HEADS], ids=["a tile a block", "tiles of one or two queries"])
def tile(request, monkeypatch):
    monkeypatch.setattr(module, "TILE", request.param)


def random_qkv(seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(TOKENS, 3, HEADS, SIZE, generator=generator, dtype=torch.float64).to(dtype)


def blocks_of(spans, heads, *, seed=1, dtype=torch.float64, forbidden=True):
    """Return blocks with random biases; about a third of the scores is forbidden, never those of the first key."""
    generator = torch.Generator().manual_seed(seed)
    blocks = []
    for queries, keys in spans:
        keys = torch.tensor(keys) if isinstance(keys, list) else slice(*keys)
        bias = None
        if heads:
            shape = (heads, queries[1] - queries[0], len(torch.arange(TOKENS)[keys]))
            bias = torch.randn(shape, generator=generator, dtype=torch.float64)
            if forbidden:
                hidden = torch.rand(shape[1:], generator=generator) < 1 / 3
                hidden[:, 0] = False
                bias = bias.masked_fill(hidden, float("-inf"))
            bias = bias.to(dtype)
        blocks.append(AttentionBlock(slice(*queries), keys, bias))
    return blocks


def with_gradients(blocks):
    return [
        block._replace(bias=None if block.bias is None else block.bias.clone().requires_grad_()) for block in blocks
    ]


def dense(qkv, blocks):
    """Attend from all tokens to all tokens, forbidding scores that no block computes, (T, h, d)."""
    query, key, value = qkv.unbind(1)
    bias = torch.full((HEADS, TOKENS, TOKENS), float("-inf"), dtype=qkv.dtype)
    for block in blocks:
        rows = torch.arange(TOKENS)[block.queries, None]
        bias = bias.index_put(
            (torch.arange(HEADS)[:, None, None], rows, torch.arange(TOKENS)[block.keys]),
            torch.zeros((), dtype=qkv.dtype) if block.bias is None else block.bias.expand(HEADS, -1, -1),
        )
    scores = torch.einsum("qhd,khd->hqk", query, key) / math.sqrt(SIZE) + bias
    return torch.einsum("hqk,khd->qhd", scores.softmax(dim=-1), value)


def leaves(qkv, blocks):
    return [qkv, *(block.bias for block in blocks if block.bias is not None)]


@pytest.mark.parametrize("learned", [False, True], ids=["fixed biases", "learned biases"])
@pytest.mark.parametrize("heads", BIASES.values(), ids=BIASES)
@pytest.mark.parametrize("spans", [SPANS, WINDOWS, GAPS], ids=["examples", "windows", "gaps"])
def test_dense_attention(spans, heads, learned):
    qkv, blocks = random_qkv().requires_grad_(), blocks_of(spans, heads)
    if learned:
        blocks = with_gradients(blocks)
    found, expected = packed_attention(qkv, blocks), dense(qkv, blocks)
    assert found.shape == (TOKENS, HEADS, SIZE)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    weight = torch.randn(TOKENS, HEADS, SIZE, dtype=torch.float64)
    of = leaves(qkv, blocks) if learned else [qkv]
    ours, plain = (torch.autograd.grad((weight * out).sum(), of) for out in (found, expected))
    for gradient, other in zip(ours, plain, strict=True):
        torch.testing.assert_close(gradient, other, atol=1e-12, rtol=1e-12)


def test_biases_of_some_blocks_alone():
    """As in a batch in which contexts see everything, and the sections after them do not."""
    blocks = [
        block if index % 2 else block._replace(bias=None)
        for index, block in enumerate(with_gradients(blocks_of(SPANS, 1)))
    ]
    qkv = random_qkv().requires_grad_()
    found, expected = packed_attention(qkv, blocks), dense(qkv, blocks)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    ours, plain = (torch.autograd.grad(out.square().sum(), leaves(qkv, blocks)) for out in (found, expected))
    torch.testing.assert_close(ours, plain, atol=1e-12, rtol=1e-12)


def test_one_table_of_biases_for_all_blocks():
    """A table of biases collects the gradients of all blocks that look it up."""
    table = torch.randn(HEADS, 9, dtype=torch.float64, requires_grad=True)

    def blocks():
        for block in blocks_of(SPANS, 0):
            size = [len(range(TOKENS)[part]) for part in (block.queries, block.keys)]
            distance = (torch.arange(size[1]) - torch.arange(size[0]).unsqueeze(1)).clamp(-4, 4) + 4
            yield block._replace(bias=table[:, distance])

    qkv = random_qkv()
    # With and without gradients of queries and keys.
    for inputs in (qkv.clone().requires_grad_(), qkv):
        ours, plain = (
            torch.autograd.grad(attend(inputs, list(blocks())).square().sum(), table)
            for attend in (packed_attention, dense)
        )
        torch.testing.assert_close(ours, plain, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("heads", BIASES.values(), ids=BIASES)
def test_inference_is_training_without_dropout(heads):
    """They are computed in different ways."""
    qkv, blocks = random_qkv(dtype=torch.float32), blocks_of(SPANS, heads, dtype=torch.float32)
    trained = packed_attention(qkv.clone().requires_grad_(), blocks)
    assert trained.requires_grad
    torch.testing.assert_close(packed_attention(qkv, blocks), trained, atol=1e-6, rtol=1e-5)
    with torch.no_grad():
        found = packed_attention(qkv.clone().requires_grad_(), blocks)
    assert not found.requires_grad
    torch.testing.assert_close(found, trained.detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("heads", BIASES.values(), ids=BIASES)
def test_gradients_are_those_of_the_forward_pass(heads, dropout):
    """Finite differences use the same random numbers in each pass, so both drop the same weights."""
    spans = SPANS[:2]

    def attend(qkv, *biases):
        torch.manual_seed(0)
        blocks = [
            AttentionBlock(slice(*queries), slice(*keys), biases[index] if biases else None)
            for index, (queries, keys) in enumerate(spans)
        ]
        return packed_attention(qkv, blocks, dropout)

    # Without forbidden scores, whose differences are not finite.
    blocks = with_gradients(blocks_of(spans, heads, forbidden=False))
    qkv = random_qkv()[:7].clone().requires_grad_()
    assert torch.autograd.gradcheck(attend, (qkv, *leaves(qkv, blocks)[1:]), fast_mode=False)


def test_dropped_weights():
    """One-hot values make the result show the weights: some are 0, the others scaled."""
    torch.manual_seed(0)
    length, dropout = 40, 0.25
    qkv = torch.randn(length, 3, HEADS, length, dtype=torch.float64)
    qkv[:, 2] = torch.eye(length).unsqueeze(1)
    block = AttentionBlock(slice(0, length), slice(0, length), None)
    weights = packed_attention(qkv, [block])
    dropped = packed_attention(qkv.clone().requires_grad_(), [block], dropout)
    is_zero = dropped == 0
    torch.testing.assert_close(dropped[~is_zero], weights[~is_zero] / (1 - dropout))
    count = is_zero.numel()
    assert abs(is_zero.sum() - dropout * count) <= 5 * math.sqrt(dropout * (1 - dropout) * count)


@pytest.mark.parametrize("heads", BIASES.values(), ids=BIASES)
def test_dropout_changes_no_expectation(heads):
    """Means of result and gradient of the values over many draws are within five standard errors.

    A weight becomes 0 or 1.25 times itself, with a standard deviation of half of it: five standard errors of 400 draws
    are an eighth, and without the factor of 1.25 a fifth would be missing.
    """
    torch.manual_seed(0)
    qkv, blocks, draws = random_qkv().requires_grad_(), blocks_of(SPANS, heads), 400
    weight = torch.randn(TOKENS, HEADS, SIZE, dtype=torch.float64)

    def result_and_gradient(dropout):
        found = packed_attention(qkv, blocks, dropout)
        # It is linear in the dropped weights, unlike the gradients of queries and keys.
        (gradient,) = torch.autograd.grad((weight * found).sum(), qkv)
        return torch.stack([found.detach(), gradient[:, 2]])

    drawn = torch.stack([result_and_gradient(0.2) for _ in range(draws)])
    error = drawn.std(dim=0) / math.sqrt(draws)
    assert error.max() > 0
    assert ((drawn.mean(dim=0) - result_and_gradient(0.0)).abs() <= 5 * error + 1e-9).all()


def test_dropout_follows_the_seed():
    qkv, blocks = random_qkv().requires_grad_(), blocks_of(SPANS, 1)
    torch.manual_seed(3)
    first, second = (packed_attention(qkv, blocks, 0.5) for _ in range(2))
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(packed_attention(qkv, blocks, 0.5), first)


@pytest.mark.parametrize("bias_dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("heads", BIASES.values(), ids=BIASES)
def test_half_precision(heads, bias_dtype):
    """Result and gradients are close to those in double precision, and have the data types of their tensors."""
    qkv = random_qkv(dtype=torch.bfloat16)
    blocks = blocks_of(SPANS, heads, dtype=bias_dtype)
    exact_blocks = with_gradients([b._replace(bias=None if b.bias is None else b.bias.double()) for b in blocks])
    blocks, exact_qkv = with_gradients(blocks), qkv.double().requires_grad_()
    expected = dense(exact_qkv, exact_blocks)
    exact = torch.autograd.grad(expected.square().sum(), leaves(exact_qkv, exact_blocks))
    learning = qkv.clone().requires_grad_()
    found = packed_attention(learning, blocks)
    gradients = torch.autograd.grad(found.square().sum(), leaves(learning, blocks))
    tolerance = {"atol": 0.05, "rtol": 0.05}
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, **tolerance)
    for leaf, gradient, other in zip(leaves(learning, blocks), gradients, exact, strict=True):
        assert gradient.dtype == leaf.dtype
        torch.testing.assert_close(gradient.double(), other, **tolerance)
    with torch.no_grad():
        torch.testing.assert_close(packed_attention(qkv, blocks).double(), expected, **tolerance)
    dropped = packed_attention(learning, blocks, 0.5)
    assert dropped.dtype == torch.bfloat16 and dropped.isfinite().all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(dropped.float().sum(), leaves(learning, blocks)))


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("heads", BIASES.values(), ids=BIASES)
def test_bfloat16_products(heads, dropout):
    """Autocast only rounds factors: the same weights are dropped, and results are float32."""
    qkv = random_qkv(dtype=torch.float32).requires_grad_()
    blocks = with_gradients(blocks_of(SPANS, heads, dtype=torch.float32))
    weight = torch.randn(TOKENS, HEADS, SIZE)

    def result_and_gradients(enabled):
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            found = packed_attention(qkv, blocks, dropout)
        of_qkv, *of_biases = torch.autograd.grad((weight * found).sum(), leaves(qkv, blocks))
        return [found, of_qkv, *([torch.cat([bias.flatten() for bias in of_biases])] if heads else [])]

    for found, exact in zip(result_and_gradients(True), result_and_gradients(False), strict=True):
        assert found.dtype == torch.float32
        assert 1e-4 < ((found - exact).norm() / exact.norm()).item() < 0.02


@pytest.mark.parametrize("at", [[0, 3, 4, 8, 11], [5], list(range(TOKENS)), []], ids=["some", "one", "all", "none"])
@pytest.mark.parametrize("heads", BIASES.values(), ids=BIASES)
@pytest.mark.parametrize("spans", [SPANS, WINDOWS, GAPS], ids=["examples", "windows", "gaps"])
def test_some_queries(spans, heads, at):
    """Their results are the same as among all queries, and so are the gradients of a loss of them."""
    qkv, blocks = random_qkv().requires_grad_(), with_gradients(blocks_of(spans, heads))
    at = torch.tensor(at, dtype=torch.long)
    found, expected = packed_attention(qkv, blocks_at(at, blocks), at=at), dense(qkv, blocks)[at]
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(packed_attention(qkv, blocks_at(at, blocks), at=at), expected)
    of, weight = leaves(qkv, blocks), torch.randn(len(at), HEADS, SIZE, dtype=torch.float64)
    ours, plain = (
        torch.autograd.grad((weight * out).sum(), of, allow_unused=True, materialize_grads=True)
        for out in (found, expected)
    )
    torch.testing.assert_close(ours, plain, atol=1e-12, rtol=1e-12)


def test_tiles():
    """Each query of a block is in one tile."""
    blocks = blocks_of([((0, 7), (0, 4)), ((7, 12), (0, 12))], 0)
    tiles = list(module._cut(blocks, 12))
    assert [(tile.queries, tile.keys, tile.block, tile.rows) for tile in tiles] == [
        (slice(0, 3), slice(0, 4), 0, slice(0, 3)),
        (slice(3, 6), slice(0, 4), 0, slice(3, 6)),
        (slice(6, 7), slice(0, 4), 0, slice(6, 7)),
        *((slice(row, row + 1), slice(0, 12), 1, slice(row - 7, row - 6)) for row in range(7, 12)),
    ]
    assert [tile.queries for tile in module._cut(blocks, 16)][:2] == [slice(0, 4), slice(4, 7)]


LENGTHS = ((9, 4, 4), (5, 0, 0), (6, 3, 3), (1, 2))
FLEX_HEADS, WIDTH = 2, 16
NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
# On a GPU FlexAttention is compiled, by processes that PyTorch starts.
DEVICES = ["cpu", pytest.param("cuda", marks=[NEEDS_GPU, pytest.mark.process])]


def columns(device):
    """Return positions, steps and groups of pseudo-masked examples, the last one without placeholders."""
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
@pytest.mark.parametrize("causal", [False, True], ids=["both directions", "causal"])
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_equals_attention_in_blocks(device, window, causal):
    torch.manual_seed(0)
    positions, steps, groups = columns(device)
    given = PackedColumns(positions, positions, positions, steps, groups, LENGTHS)
    given = given.with_causal_context() if causal else given
    blocks = attention_blocks(given, window=window)
    on_gpu = device == "cuda"  # there are no gradients on CPUs
    with torch.set_grad_enabled(on_gpu):
        qkv = torch.randn(len(positions), 3, FLEX_HEADS, WIDTH, device=device, requires_grad=on_gpu)
        found = flexible_attention(qkv, flex_mask(given, window=window))
        expected = packed_attention(qkv, blocks)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    if on_gpu:
        weights = torch.randn_like(found)
        ours, theirs = (torch.autograd.grad((weights * y).sum(), qkv) for y in (found, expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)
