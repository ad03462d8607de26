"""Attention by flash attention: the same outputs, gradients and dropout as by the dense rule."""

import inspect

import flash_kernel
import numpy as np
import pytest
import torch
from tiny import pack_example, packed_columns, tiny_form, words

from s2sft_fairseq.modules import flash_attention as module
from s2sft_fairseq.modules.flash_attention import flash_attention, flash_obstacle, flash_plan
from s2sft_fairseq.modules.padded_attention import padded_attention, padded_plan
from s2sft_fairseq.modules.visibility import PackedColumns, visible, within_window
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.packing import Section, collate
from s2sft_fairseq.objectives.ragged import Ragged

HEADS, WIDTH = 2, 128
"""At least the number of tokens, so that outputs can show the weights; see `weights`."""
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


def example(context, content=0, placeholders=0, first=1):
    """Return an example in order; its ids do not matter."""

    def block(length, start, step, group):
        steps = step + np.arange(length) if step else 0
        groups = 7 + 2 * np.arange(length) if group else 0
        ids = Ragged.of([np.full(length, 5)])
        return Section.of(ids, first_position=start, segment=0, label=0, step=steps, group=groups)

    return (
        block(context, 0, 0, False),
        block(content, context, 1, False),
        block(placeholders, context + first - 1, first, True),
    )


def packed(method):
    """Return examples of an objective, longer and shorter than the windows, and as short as possible."""
    rng = np.random.default_rng(0)
    form, corruption = tiny_form(method), OBJECTIVES[method].corruption["original"]
    pairs = [(words(rng, source), words(rng, target)) for source, target in ((6, 5), (11, 2), (1, 8), (1, 1))]
    return [pack_example(method, source, target, form, corruption, rng) for source, target in pairs]


BATCHES = {
    **{name: packed(name) for name, objective in OBJECTIVES.items() if objective.cut is None},
    "a source": [example(9)],
    "sources": [example(n)[:1] for n in (9, 1, 4)],
    "content or not": [example(4, 3), example(5), example(1, 6)],
    "one content": [example(1, 1)],
    "one placeholder": [example(1, 1, 1)],
    "placeholders alone": [example(3, 0, 1), example(2, 0, 0)],
    "some placeholders": [example(3, 5, 2, 2), example(2, 0, 0, 2), example(2, 4, 0, 2), example(1, 1, 1, 2)],
    "late placeholders": [example(3, 5, 3, 4), example(20, 3, 1, 4)],
}
WINDOWS = {"global": 0, "window": 6, "narrow": 2}


@pytest.fixture
def emulated():
    with flash_kernel.emulated_kernel():
        yield


def tokens(columns):
    return len(columns.positions)


def dense_visible(columns, window):
    """Return which keys each query of a whole batch sees (T, T)."""
    seen = visible(columns.steps, columns.groups, columns.steps, columns.groups)
    if window:
        seen &= within_window(columns.positions, columns.positions, window)
    example = torch.arange(len(columns.lengths)).repeat_interleave(torch.tensor([sum(n) for n in columns.lengths]))
    return seen & (example.unsqueeze(1) == example).to(seen.device)


def dense_attention(qkv, seen, kept=1.0):
    """Attend by the rule, with all scores; ``kept``: the result of dropout on ones (T, h, T)."""
    query, key, value = qkv.unbind(1)
    scores = torch.einsum("qhd,khd->qhk", query, key) / WIDTH**0.5
    weights = scores.masked_fill(~seen.unsqueeze(1), float("-inf")).softmax(-1)
    return torch.einsum("qhk,khd->qhd", weights * kept, value)


def random_qkv(columns, dtype=torch.float64):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(tokens(columns), 3, HEADS, WIDTH, generator=generator, dtype=torch.float64).to(
        columns.positions.device, dtype
    )


def attend(qkv, plan, dropout, at=None):
    torch.manual_seed(5)
    return flash_attention(qkv, plan, dropout, at=at)


def weights(qkv, plan, dropout):
    """Return the weights after dropout (T, h, T); each token's value is a one-hot vector, so the outputs show them."""
    count = len(qkv)
    assert count <= WIDTH
    qkv = qkv.detach().clone()
    qkv[:, 2] = torch.eye(count, WIDTH).to(qkv).unsqueeze(1)
    return attend(qkv, plan, dropout)[..., :count]


def test_batches_are_in_order():
    assert all(packed_columns(collate(examples)).first_step for examples in BATCHES.values())


def assert_equals_the_dense_rule(columns, window, dropout, dtype, tolerance):
    """Compare results and gradients. The seed alone determines what is dropped, and the weights show it."""
    plan = flash_plan(columns, window=window, dtype=dtype)
    seen, qkv = dense_visible(columns, window), random_qkv(columns, dtype).requires_grad_()
    kept = (weights(qkv, plan, dropout) != 0).double() / (1 - dropout)
    assert not kept[~seen.unsqueeze(1).expand_as(kept)].any()
    exact = qkv.detach().double().requires_grad_()
    expected, found = dense_attention(exact, seen, kept), attend(qkv, plan, dropout)
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)
    outer = torch.randn_like(expected).to(dtype)
    (ours,) = torch.autograd.grad((outer * found).sum(), qkv)
    (theirs,) = torch.autograd.grad((outer * expected).sum(), exact)
    torch.testing.assert_close(ours.double(), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
@pytest.mark.parametrize("examples", BATCHES.values(), ids=BATCHES)
@pytest.mark.usefixtures("emulated")
def test_equals_the_dense_rule(examples, window, dropout):
    columns = packed_columns(collate(examples))
    for each in (columns, columns.with_causal_context()):
        assert_equals_the_dense_rule(each, window, dropout, torch.float64, tolerance=1e-12)


def test_a_causal_context_and_its_target_are_one_causal_call():
    columns = packed_columns(collate(BATCHES["some placeholders"]))
    both, causal = (flash_plan(each, dtype=torch.float64).calls for each in (columns, columns.with_causal_context()))
    assert [(call.is_causal, call.with_own_key) for call in both] == [(False, False), (True, False), (True, True)]
    assert [(call.is_causal, call.with_own_key) for call in causal] == [(True, False), (True, True)]
    # Runs of queries and keys: source and target together; then placeholders, which see no key in this call; then keys
    # that no query sees.
    assert causal[0].query_bounds.tolist() == [0, 8, 10, 10, 12, 12, 12, 18, 18, 18, 20, 21, 21]
    assert causal[0].key_bounds.tolist() == [0, 8, 8, 10, 12, 12, 12, 18, 18, 18, 20, 20, 21]
    for name in ("query_bounds", "key_bounds"):
        assert getattr(causal[1], name).tolist() == getattr(both[2], name).tolist()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("at", [[0], [2, 8, 9, 11], list(range(7, 24))], ids=["first", "some", "rest"])
@pytest.mark.usefixtures("emulated")
def test_some_tokens(at, dropout):
    """Results and gradients are those of all tokens, with the other results left out."""
    columns = packed_columns(collate(BATCHES["pseudo_masked"]))
    plan, at = flash_plan(columns, dtype=torch.float64), torch.tensor(at)
    qkv = random_qkv(columns).requires_grad_()
    outer = torch.randn(len(at), HEADS, WIDTH, dtype=torch.float64)
    some, all_ = attend(qkv, plan, dropout, at=at), attend(qkv, plan, dropout)[at]
    torch.testing.assert_close(some, all_, rtol=0, atol=0)
    (ours,), (theirs,) = (torch.autograd.grad((outer * y).sum(), qkv) for y in (some, all_))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("emulated")
def test_one_own_key_in_four_is_dropped():
    """A placeholder's own key, which the kernel does not handle, is dropped as often as the others."""
    columns = packed_columns(collate([example(1, 40, 40), example(1, 10, 10)] * 20))
    plan, placeholder = flash_plan(columns, dtype=torch.float64), columns.groups > 0
    qkv = torch.zeros(tokens(columns), 3, HEADS, 8, dtype=torch.float64)
    qkv[placeholder, 2] = 1  # only the own key has it
    torch.manual_seed(0)
    dropped = flash_attention(qkv, plan, 0.25)[placeholder, :, 0] == 0
    # 2,000 draws: the standard deviation of the share is 0.01.
    assert dropped.double().mean() == pytest.approx(0.25, abs=0.05)


OBSTACLES = {
    "has_bias": ({"has_bias": True}, "relative position bias"),
    "dtype": ({"dtype": torch.float32}, "float32"),
    "width": ({"head_dim": 12}, "multiple of 8 up to 192, not 12"),
    "too wide": ({"head_dim": 200}, "multiple of 8 up to 192, not 200"),
    "window": ({"window": 1}, "--local-attention-window"),
}


def obstacle(columns, **changes):
    settings = {"head_dim": 64, "window": 0, "has_bias": False, "dtype": torch.bfloat16}
    return flash_obstacle(columns, **{**settings, **changes})


@pytest.fixture
def available(monkeypatch):
    """Every device has the kernel."""
    monkeypatch.setattr(module, "is_available", lambda device: True)


@pytest.mark.parametrize(("changes", "named"), OBSTACLES.values(), ids=OBSTACLES)
@pytest.mark.usefixtures("available")
def test_obstacles(changes, named):
    columns = packed_columns(collate(BATCHES["causal"]))
    assert obstacle(columns) is None
    assert named in obstacle(columns, **changes)


@pytest.mark.usefixtures("available")
def test_other_orders_are_an_obstacle():
    columns = packed_columns(collate(BATCHES["pseudo_masked"]))
    assert "from left to right" in obstacle(columns._replace(first_step=None))


def test_cpus_are_an_obstacle():
    assert "NVIDIA GPU" in obstacle(packed_columns(collate(BATCHES["causal"])))


def test_the_emulation_has_the_arguments_of_the_operators():
    """They have the same names; the package passes them in PyTorch's order."""
    for emulation, operator in (
        (flash_kernel.forward, torch.ops.aten._flash_attention_forward.default),
        (flash_kernel.backward, torch.ops.aten._flash_attention_backward.default),
    ):
        ours = [name for name, each in inspect.signature(emulation).parameters.items() if each.kind != each.VAR_KEYWORD]
        assert ours == [each.name for each in operator._schema.arguments if not each.kwarg_only]
        assert {"window_size_left", "window_size_right"} <= {each.name for each in operator._schema.arguments}


ROUNDING = {torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""A few roundings of weights and sums of the order of 1, in gradients of the order of 5."""


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.usefixtures("emulated")
def test_16_bits(dropout, dtype):
    columns = packed_columns(collate(BATCHES["pseudo_masked"]))
    assert_equals_the_dense_rule(columns, 0, dropout, dtype, ROUNDING[dtype])


CUDA = torch.device("cuda")


def on_gpu(examples):
    columns = packed_columns(collate(examples))
    return PackedColumns(*(column.to(CUDA) for column in columns[:5]), *columns[5:])


@ON_GPU
@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_kernel_of_gpus(dropout, dtype):
    """It equals the dense rule, like its emulation above."""
    for examples in BATCHES.values():
        for window in WINDOWS.values():
            assert_equals_the_dense_rule(on_gpu(examples), window, dropout, dtype, ROUNDING[dtype])


@ON_GPU
@pytest.mark.parametrize("window", WINDOWS.values(), ids=WINDOWS)
def test_equals_padded_attention_on_a_gpu(window):
    """With runs of many tiles of the kernel."""
    columns = on_gpu([example(700, 300, 300), example(130, 1, 1), example(1, 500, 500)])
    qkv = random_qkv(columns, torch.bfloat16).requires_grad_()
    plans = flash_plan(columns, window=window, dtype=qkv.dtype), padded_plan(columns, window=window, dtype=qkv.dtype)
    found = [attend_(qkv, plan) for attend_, plan in zip((flash_attention, padded_attention), plans, strict=True)]
    outer = torch.randn_like(found[0])
    gradients = [torch.autograd.grad((outer * y).sum(), qkv)[0] for y in found]
    for ours, theirs in (found, gradients):
        torch.testing.assert_close(ours, theirs, rtol=ROUNDING[qkv.dtype], atol=ROUNDING[qkv.dtype])


@ON_GPU
def test_dropout_on_a_gpu():
    """The kernel rounds the rate to 1/256, but not its scale."""
    columns = on_gpu([example(8, 40, 40)])
    plan, seen = flash_plan(columns, dtype=torch.bfloat16), dense_visible(columns, 0)
    qkv = torch.zeros(tokens(columns), 3, 64, WIDTH, device=CUDA, dtype=torch.bfloat16)
    kept = weights(qkv, plan, 0.25) != 0
    kept = kept[seen.unsqueeze(1).expand_as(kept)]
    # 200,000 draws: the standard deviation of the share is 0.001.
    assert kept.float().mean().item() == pytest.approx(0.75, abs=1 / 256 + 0.005)
