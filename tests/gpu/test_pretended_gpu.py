"""The pretended GPU itself: what it refuses and counts, and its computations."""

import pytest
import torch
from pretended_gpu import DEVICE, counting, download, moved, upload
from tiny import tiny_model
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from s2sft_fairseq.modules.visibility import blocks_at


def on_gpu(*shape):
    return upload(torch.arange(torch.Size(shape).numel(), dtype=torch.float32).view(shape) + 1)


@pytest.mark.parametrize(
    "meet",
    [
        lambda ours, theirs: ours + theirs,
        lambda ours, theirs: theirs + ours,
        lambda ours, theirs: ours.mul_(theirs),
        lambda ours, theirs: ours @ theirs,
        lambda ours, theirs: torch.cat([ours, theirs]),
        lambda ours, theirs: torch.where(ours > 1, ours, theirs),
        lambda ours, theirs: theirs[ours.long() - 1],
        lambda ours, theirs: scaled_dot_product_attention(ours[None], theirs[None], ours[None]),
    ],
)
@pytest.mark.parametrize("inference", [False, True])
def test_mixing_is_refused(meet, inference):
    with (
        torch.inference_mode(inference),
        counting(),
        pytest.raises(RuntimeError, match=r"expected all tensors on one device, but .*\(1?,? ?2, 2\)"),
    ):
        meet(on_gpu(2, 2), torch.ones(2, 2))


def test_a_single_number_may_mix():
    with counting() as counts:
        assert download(on_gpu(3) * torch.tensor(2.0)).tolist() == [2, 4, 6]
    assert (counts.launches, counts.uploads) == ({"mul": 1}, {})


def test_other_refusals():
    with counting(), pytest.raises(NotImplementedError, match="cannot change the shape of a tensor in place"):
        on_gpu(2, 3).t_()
    with counting(), pytest.raises(TypeError, match=r"has no NumPy array: call cpu\(\) first"):
        on_gpu(2).numpy()
    with pytest.raises(TypeError, match="expected a tensor on the pretended GPU, but got one on cpu"):
        download(torch.ones(2))


def write_slice(x):
    x[1:] = 3.0


LAUNCHES = {
    "views": (lambda x: x.view(-1)[1:].unsqueeze(0).expand(2, -1).transpose(0, 1).split(1), {}),
    "allocation": (lambda x: torch.empty_like(x).new_empty(3), {}),
    "linear": (lambda x: nn.functional.linear(x, x, x[0, :2]), {"addmm": 1}),
    "elementwise": (lambda x: (x + 1).mul_(2), {"add": 1, "mul_": 1}),
    "copying reshape": (lambda x: x.t().reshape(-1), {"clone": 1}),
    "data types": (lambda x: x.half().half(), {"_to_copy": 1}),
    "attention": (lambda x: scaled_dot_product_attention(x[None], x[None], x[None], is_causal=True), {"attention": 1}),
    "attention with a mask": (lambda x: scaled_dot_product_attention(x, x, x, attn_mask=x @ x.t()),
                              {"mm": 1, "attention": 1}),
    "factory": (lambda x: torch.arange(3, device=x.device), {"arange": 1}),
    "slice": (write_slice, {"scalar_tensor": 1, "copy_": 1}),
}  # fmt: skip


@pytest.mark.parametrize(("program", "launches"), LAUNCHES.values(), ids=LAUNCHES)
@pytest.mark.parametrize("inference", [False, True])
def test_launches(program, launches, inference):
    """Views and allocations count as none; a composed operator counts as its parts."""
    with torch.inference_mode(inference), counting() as counts:
        program(on_gpu(2, 3))
    assert counts.launches == launches
    assert not counts.synchronisations
    assert not counts.uploads


@pytest.mark.parametrize(
    ("ask", "times"),
    [
        (lambda x: x.sum().item(), 1),
        (lambda x: bool((x > 0).any()), 1),
        (lambda x: float(x[0]) + int(x[1]), 2),
        (lambda x: x.tolist(), 1),
        (lambda x: x.cpu(), 1),
        (lambda x: torch.empty(3).copy_(x), 1),
        (lambda x: (x > 1).nonzero(), 1),
        (lambda x: x[x > 1], 1),
        (lambda x: x.repeat_interleave(x.long()), 1),
        (lambda x: x.repeat_interleave(x.long(), output_size=6), 0),
        (lambda x: x.masked_fill(x > 1, 0.0), 0),
        (lambda x: x[(x - 1).long()], 0),
    ],
)
def test_synchronisations(ask, times):
    """The host waits for values, and for results whose size depends on values."""
    with counting() as counts:
        ask(on_gpu(3))
    assert counts.synchronisations.total() == times


@pytest.mark.parametrize(
    ("bring", "times"),
    [
        (lambda x: torch.tensor([1, 2], device=DEVICE), 1),
        (lambda x: x.new_tensor([1, 2]), 1),
        (lambda x: torch.ones(3).to(x.device), 1),
        (lambda x: x.copy_(torch.ones(3)), 1),
        (lambda x: x[[0, 2]], 1),
        (lambda x: x[torch.tensor([0, 2])], 1),
        (lambda x: torch.zeros(3, device=x.device), 0),
        (lambda x: x.to(x.device), 0),
    ],
)
def test_uploads(bring, times):
    with counting() as counts:
        assert bring(on_gpu(3)).device == DEVICE
    assert counts.uploads.total() == times
    assert not counts.synchronisations


def test_origins():
    """A wait has the line in the package that caused it, or that of the caller of PyTorch."""
    queries = upload(torch.tensor([0, 2]))
    with counting() as counts:
        blocks_at(queries, [])
        queries.tolist()
    ours, theirs = counts.synchronisations
    assert ours.startswith("modules/visibility.py:") and ours.endswith(" tolist")
    assert theirs.startswith("test_pretended_gpu.py:")


def test_slices():
    """Writes into a part count; the backward pass of two slices has two fills with zeros, two copies and a sum."""
    x = nn.Parameter(on_gpu(4, 8))
    with counting() as counts:
        product = (x[:2] * x[2:]).sum()
    assert counts.slice_bytes == 0
    with counting() as counts:
        product.backward()
    whole = 4 * 8 * 4
    assert counts.slice_bytes == 2 * whole + 2 * whole // 2 + whole
    assert counts.launches["zeros of a slice"] == counts.launches["copy of a slice"] == 2
    with counting() as counts:
        x.detach()[:, 0].fill_(1.0)
        x.detach().fill_(1.0)
    assert counts.slice_bytes == 4 * 4


def test_only_within():
    """The innermost `counting` counts, and CPU operators are not counted; outside, there are no factories."""
    x = on_gpu(3)
    with counting() as outer:
        with counting() as inner:
            x + 1
        torch.ones(3) + 1
    assert (outer.launches, inner.launches) == ({}, {"add": 1})
    assert download(x + 1).tolist() == [2, 3, 4]
    with pytest.raises(NotImplementedError):
        torch.zeros(3, device=DEVICE)


def test_writing():
    """A write through a view changes the whole tensor, which stays the same object."""
    x = on_gpu(2, 2)
    with counting():
        assert x.add_(1) is x
        x[0].mul_(10)
        torch.mul(x[1], 100, out=x[1])
    assert download(x).tolist() == [[20, 30], [400, 500]]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_gradients(dtype):
    """The same operators on the same values: attention with a mask that has a gradient, layer norm, an embedding."""
    torch.manual_seed(0)
    layers = nn.ModuleList([nn.Embedding(7, 8), nn.LayerNorm(8), nn.Linear(8, 8)]).to(dtype)
    layers.mask = nn.Parameter(torch.randn(2, 1, 5, 5, dtype=dtype))
    tokens = torch.randint(7, (2, 5))

    def loss(layers, tokens):
        embedding, norm, linear = layers
        x = linear(norm(embedding(tokens))).unsqueeze(1)
        x = scaled_dot_product_attention(x, 2 * x, x[..., :4], attn_mask=layers.mask)
        return x.float().square().sum()

    ours = moved(layers)
    with counting() as counts:
        found = loss(ours, upload(tokens))
        found.backward()
    expected = loss(layers, tokens)
    expected.backward()
    assert counts.launches["attention"] == counts.launches["attention backward"] == 1
    torch.testing.assert_close(download(found), expected, rtol=0, atol=0)
    for mine, theirs in zip(ours.parameters(), layers.parameters(), strict=True):
        torch.testing.assert_close(download(mine.grad), theirs.grad, rtol=0, atol=0)


def test_a_moved_model():
    """It is a copy; shared parameters stay shared, and frozen ones frozen."""
    model = tiny_model(relative=True)
    model.register_buffer("table", torch.ones(2))
    model.alias = model.embeddings.tokens
    model.lm_head.bias.requires_grad_(False)
    ours = moved(model, torch.bfloat16)
    assert {(x.device, x.dtype) for x in (*ours.parameters(), ours.table)} == {(DEVICE, torch.bfloat16)}
    assert {(x.device.type, x.dtype) for x in (*model.parameters(), model.table)} == {("cpu", torch.float32)}
    assert ours.alias.weight is ours.embeddings.tokens.weight
    assert not ours.lm_head.bias.requires_grad
