"""An update on the pretended GPU: the CPU's loss and gradients, with few launches, waits and copies."""

from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from flash_kernel import emulated_kernel
from pretended_gpu import counting, download, moved, upload
from tiny import ENCODERS, PAD, model_inputs, pack_example, tiny_dictionary, tiny_form, tiny_model, words

from s2sft_fairseq.criterions.mask_attention import MaskAttentionCriterion
from s2sft_fairseq.models.unilm_config import has_causal_source
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.packing import collate

LENGTHS = ((9, 5), (20, 3), (2, 9), (1, 1))
"""Of sources and targets: longer and shorter than the local windows, and than multiples to which padding rounds up."""
LABEL_SMOOTHING = 0.1
BATCHED = {kind: options for kind, options in ENCODERS.items() if "disentangled_attention" not in options}
"""Encoders whose examples attend in one call; disentangled attention works example by example."""
# The order of additions differs: on the GPU, examples are padded and attend in one call. Losses are sums over tens of
# labels; gradients, relative to the largest one of their parameter, are sums over all positions.
ROUNDING = {torch.float64: 1e-12, torch.float32: 1e-4}


KERNELS = {"padded": nullcontext, "flash": emulated_kernel}
"""The kernels of attention on the GPU: with and without flash attention."""


@pytest.fixture(params=KERNELS)
def kernel(request):
    """The name of each kernel in turn."""
    with KERNELS[request.param]():
        yield request.param


def sample(method, lengths=LENGTHS):
    """Return a batch in the form for the criterion, on the CPU."""
    rng = np.random.default_rng(0)
    form, corruption = tiny_form(method), OBJECTIVES[method].corruption["paper"]
    batch = collate([pack_example(method, words(rng, n), words(rng, m), form, corruption, rng) for n, m in lengths])
    labelled = torch.from_numpy(np.flatnonzero(batch.label != PAD))
    return {
        "net_input": {**model_inputs(batch), "labelled": labelled},
        "labels": torch.from_numpy(batch.label)[labelled],
        "flows": {},
        "weights": None,
        "ntokens": len(labelled),
        "divisor": len(labelled),
        "nsentences": len(lengths),
    }


def uploaded(value):
    """Return the same with its tensors on the GPU."""
    if isinstance(value, dict):
        return {name: uploaded(one) for name, one in value.items()}
    return upload(value) if isinstance(value, torch.Tensor) else value


def loss_of(model, batch, **options):
    task = SimpleNamespace(target_dictionary=tiny_dictionary())
    settings = {"label_smoothing": LABEL_SMOOTHING, "report_accuracy": False, "sentence_avg": False}
    return MaskAttentionCriterion(task, **{**settings, **options})(model.train(), batch)[0]


def update(model, batch):
    """Return the counts of the loss and of its backward pass on the GPU."""
    ours = moved(model)
    with counting() as forward:
        loss = loss_of(ours, uploaded(batch))
    with counting() as backward:
        loss.backward()
    return forward, backward


def assert_same_update(model, batch, dtype, tolerance):
    """Compare loss and gradients on the GPU with those of the CPU."""
    ours = moved(model, dtype)
    with counting():
        found = loss_of(ours, uploaded(batch))
        found.backward()
    expected = loss_of(model.to(dtype), batch)
    expected.backward()
    torch.testing.assert_close(download(found), expected, rtol=tolerance, atol=0)
    theirs = dict(model.named_parameters())
    assert any(parameter.grad is not None for parameter in theirs.values())
    for name, parameter in ours.named_parameters():
        if theirs[name].grad is None:
            assert parameter.grad is None, name
            continue
        scale = theirs[name].grad.abs().max()
        difference = (download(parameter.grad) - theirs[name].grad).abs().max()
        assert difference <= tolerance * scale, f"{name}: {difference / scale}"


@pytest.mark.parametrize("dtype", ROUNDING)
@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
@pytest.mark.parametrize("method", OBJECTIVES)
@pytest.mark.usefixtures("kernel")
def test_equals_the_cpu(method, encoder, dtype):
    """Each device attends in its own way: example by example on the CPU, all examples at once on the GPU."""
    assert_same_update(tiny_model(1, **encoder), sample(method), dtype, ROUNDING[dtype])


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_block_by_block(encoder):
    """The GPU can attend like the CPU."""
    model = tiny_model(1, **encoder, attention="loop")
    assert_same_update(model, sample("pseudo_masked"), torch.float64, ROUNDING[torch.float64])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("encoder", BATCHED.values(), ids=BATCHED)
@pytest.mark.parametrize("method", OBJECTIVES)
def test_16_bits(method, encoder, dtype):
    """Both devices use the same operators: in 16 bits, another order of additions changes gradients by percents.

    The pretended GPU has no kernel for the gradient of silu: PyTorch composes it of other operators, which round in
    between.
    """
    options = {name: "gelu" if value == "silu" else value for name, value in encoder.items()}
    assert_same_update(tiny_model(1, **options, attention="padded"), sample(method), dtype, tolerance=0)


def test_reports_of_a_criterion():
    """Accuracy and weighted flows use no tensor of the wrong device."""
    batch = sample("pseudo_masked")
    flows = torch.arange(len(batch["labels"])) % 2
    batch["flows"], batch["weights"] = {"word": flows == 0, "span": flows == 1}, (0.3 + 0.4 * flows).double()
    model = tiny_model(1)
    with counting():
        found = loss_of(moved(model), uploaded(batch), report_accuracy=True)
    expected = loss_of(model, batch, report_accuracy=True)
    torch.testing.assert_close(download(found), expected, rtol=ROUNDING[torch.float32], atol=0)


def test_dropout(kernel):
    """It differs from the CPU's, but is repeatable, and no gradient is lost."""
    forward, backward, calls = {
        "padded": ("attention", "attention backward", 1),
        "flash": ("_flash_attention_forward", "_flash_attention_backward", 3),
    }[kernel]
    model, batch = tiny_model(1, dropout=0.1, attention_dropout=0.1), sample("pseudo_masked")
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        ours = moved(model)
        with counting() as counts:
            loss = loss_of(ours, uploaded(batch))
            loss.backward()
        losses.append(download(loss).item())
        assert all(download(p.grad).isfinite().all() for p in ours.parameters() if p.grad is not None)
        assert counts.launches[forward] == counts.launches[backward] == calls * len(model.layers)
    assert losses[0] == losses[1] != losses[2]


@pytest.mark.parametrize("encoder", BATCHED.values(), ids=BATCHED)
@pytest.mark.parametrize("method", OBJECTIVES)
@pytest.mark.usefixtures("kernel")
def test_launches_do_not_grow_with_the_examples(method, encoder):
    """On a GPU a small kernel takes as long as a larger one."""
    few, many = (update(tiny_model(1, **encoder), sample(method, LENGTHS * times)) for times in (1, 6))
    assert few[0].launches == many[0].launches
    assert few[1].launches == many[1].launches


def slice_bytes(model, lengths):
    return sum(counts.slice_bytes for counts in update(model, sample("pseudo_masked", lengths)))


CALLS = {"causal": 2, "masked": 2, "pseudo_masked": 3, "infilling": 3}


@pytest.mark.parametrize("encoder", BATCHED.values(), ids=BATCHED)
@pytest.mark.parametrize("method", OBJECTIVES)
def test_calls_of_flash_attention(method, encoder):
    """One each for context, content and placeholders; relative biases and blocks use padded attention.

    A causal context and the content are one call.
    """
    model = tiny_model(1, **encoder)
    with emulated_kernel():
        forward, backward = update(model, sample(method))
    of_layer = 0 if model.relative_position is not None else CALLS.get(method, 0)
    calls = len(model.layers) * (of_layer - 1 if of_layer and has_causal_source(model.cfg) else of_layer)
    assert forward.launches["_flash_attention_forward"] == backward.launches["_flash_attention_backward"] == calls
    assert forward.launches["attention"] == (0 if calls else len(model.layers))


FEW, MANY = [(20, 10)] * 2, [(2, 1)] * 20
"""20 target tokens and 40 source tokens each."""


@pytest.mark.parametrize("encoder", BATCHED.values(), ids=BATCHED)
@pytest.mark.usefixtures("kernel")
def test_slices_do_not_grow_with_the_examples(encoder):
    """With equal numbers of tokens, only the special symbols of each example differ."""
    model = tiny_model(1, **encoder)
    positions = [sum(map(sum, sample("pseudo_masked", lengths)["net_input"]["lengths"])) for lengths in (FEW, MANY)]
    each = [slice_bytes(model, lengths) / count for lengths, count in zip((FEW, MANY), positions, strict=True)]
    assert each[1] <= 1.1 * each[0]


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_example_by_example_exceeds_the_limits(encoder):
    """Example by example, each has launches of its own, and slices whose gradients are as large as the batch.

    The windows are as wide as two examples of `FEW`; otherwise these would be cut into many blocks.
    """
    wide = {"local_attention_window": 80} if "local_attention_window" in encoder else {}
    model = tiny_model(1, **{**encoder, **wide}, attention="loop")
    few, many = (update(model, sample("pseudo_masked", lengths)) for lengths in (FEW, MANY))
    for of_few, of_many in zip(few, many, strict=True):
        assert of_many.launches.total() > 2 * of_few.launches.total()
    assert slice_bytes(model, MANY) > 5 * slice_bytes(model, FEW)


@pytest.mark.parametrize("encoder", BATCHED.values(), ids=BATCHED)
@pytest.mark.parametrize("method", OBJECTIVES)
@pytest.mark.usefixtures("kernel")
def test_the_host_never_waits(method, encoder):
    """Otherwise the GPU would run idle: no kernel of an update could be launched before the last one has ended."""
    forward, backward = update(tiny_model(1, **encoder), sample(method))
    assert not forward.synchronisations
    assert not backward.synchronisations


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
@pytest.mark.usefixtures("kernel")
def test_uploads(encoder):
    """The lengths of the examples, once for each kind of layer, and nothing in the backward pass.

    The steps of a causal context are one more.
    """
    model = tiny_model(1, **encoder)
    forward, backward = update(model, sample("pseudo_masked"))
    of_context = 1 if has_causal_source(model.cfg) else 0
    assert forward.uploads.total() == len(set(model.patterns)) + of_context
    assert not backward.uploads
