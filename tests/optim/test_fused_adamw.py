"""The optimizer compared with AdamW written down step by step, in all wrappers of fairseq's trainer."""

import logging
from types import SimpleNamespace

import pytest
import torch
from fairseq.optim import AMPOptimizer, FP16Optimizer, MemoryEfficientFP16Optimizer
from omegaconf import OmegaConf
from torch import nn

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.optim import fused_adamw
from s2sft_fairseq.optim.fused_adamw import FusedAdamW, FusedAdamWConfig, SixteenBitAdamW, exempt_from_decay

SETTINGS = {"adam_betas": (0.9, 0.98), "adam_eps": 1e-6, "weight_decay": 0.1, "lr": [0.01]}


class PlainAdamW:
    """AdamW in float64, for gradients that are multiplied and clipped before."""

    def __init__(self, parameters, decays):
        self.parameters = [parameter.detach().double() for parameter in parameters]
        self.decays = decays
        self.moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters]
        self.steps = 0

    def update(self, gradients, factor, max_norm):
        """Return the norm before clipping."""
        gradients = [gradient.double() * factor for gradient in gradients]
        norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
        if max_norm and norm > max_norm:
            gradients = [gradient * max_norm / norm for gradient in gradients]
        self.steps += 1
        beta1, beta2 = SETTINGS["adam_betas"]
        for p, gradient, moments, decay in zip(self.parameters, gradients, self.moments, self.decays, strict=True):
            moments[0].mul_(beta1).add_((1 - beta1) * gradient)
            moments[1].mul_(beta2).add_((1 - beta2) * gradient**2)
            first = moments[0] / (1 - beta1**self.steps)
            second = moments[1] / (1 - beta2**self.steps)
            p.mul_(1 - SETTINGS["lr"][0] * decay)
            p.sub_(SETTINGS["lr"][0] * first / (second.sqrt() + SETTINGS["adam_eps"]))
        return norm


def network(dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    exempt_from_decay([model[0].bias, model[2].bias])
    return model.to(dtype)


def batches(updates, parts):
    """Return inputs (n, 4) and labels (n,) of each part of each update; n differs, like the labels of batches."""
    generator = torch.Generator().manual_seed(1)
    sizes = torch.randint(1, 6, (updates, parts), generator=generator).tolist()
    return [
        [(torch.randn(n, 4, generator=generator), torch.randint(3, (n,), generator=generator)) for n in part]
        for part in sizes
    ]


def summed_loss(model, x, labels):
    logits = model(x.to(next(model.parameters()).dtype))
    return nn.functional.cross_entropy(logits.float(), labels, reduction="sum")


def options(**common):
    """Return the part of fairseq's configuration that its wrappers read."""
    return SimpleNamespace(
        common=SimpleNamespace(
            fp16_scale_window=4,
            bf16=common.pop("bf16", False),
            fp16_init_scale=2**10,
            fp16_scale_tolerance=0.0,
            threshold_loss_scale=None,
            min_loss_scale=1e-4,
            fp16_no_flatten_grads=False,
            amp_scale_window=None,
        ),
        optimization=SimpleNamespace(update_freq=[1]),
        distributed_training=SimpleNamespace(distributed_world_size=1),
        optimizer=OmegaConf.create({"_name": "fused_adamw", **SETTINGS}),
    )


def train(model, optimizer, data, max_norm, as_tensor=False):
    """Update as fairseq's trainer does; return the norms that it logs."""
    norms = []
    for parts in data:
        optimizer.zero_grad()
        for x, labels in parts:
            optimizer.backward(summed_loss(model, x, labels))
        count = sum(len(labels) for _, labels in parts)
        optimizer.multiply_grads(1 / (torch.tensor(float(count)) if as_tensor else count))
        norms.append(float(optimizer.clip_grad_norm(max_norm)))
        optimizer.step()
    return norms


def train_plainly(data, max_norm):
    model = network()
    parameters = list(model.parameters())
    plain = PlainAdamW(parameters, [0 if p.ndim == 1 else SETTINGS["weight_decay"] for p in parameters])
    norms = []
    for parts in data:
        loss = sum(summed_loss(model, x, labels) for x, labels in parts)
        gradients = torch.autograd.grad(loss, parameters)
        norms.append(float(plain.update(gradients, 1 / sum(len(labels) for _, labels in parts), max_norm)))
        with torch.no_grad():
            for parameter, value in zip(parameters, plain.parameters, strict=True):
                parameter.copy_(value)
    return model, norms


def assert_close(found, expected, tolerance):
    for one, other in zip(found.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one.float(), other, atol=tolerance, rtol=0)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "foreach"])
@pytest.mark.parametrize("max_norm", [0.0, 0.3])
@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("as_tensor", [False, True], ids=["number", "tensor"])
def test_updates_are_those_of_plain_adamw(monkeypatch, fused, max_norm, parts, as_tensor):
    if not fused:
        monkeypatch.setattr(fused_adamw, "has_fused_kernels", lambda device, dtype: False)
    data = batches(8, parts)
    model = network()
    optimizer = FusedAdamW(FusedAdamWConfig(**SETTINGS), model.parameters())
    assert [group["fused"] for group in optimizer.param_groups] == [fused, fused]
    norms = train(model, optimizer, data, max_norm, as_tensor)
    expected, expected_norms = train_plainly(data, max_norm)
    assert norms == pytest.approx(expected_norms, rel=1e-5)
    assert max(expected_norms) > 0.3  # some were clipped
    assert_close(model, expected, 1e-6)


@pytest.mark.parametrize("max_norm", [0.0, 0.3])
@pytest.mark.parametrize(
    ("wrapper", "dtype", "tolerance"),
    [
        (FP16Optimizer, torch.float16, 2e-2),
        (FP16Optimizer, torch.bfloat16, 5e-2),
        (MemoryEfficientFP16Optimizer, torch.float16, 2e-2),
        (MemoryEfficientFP16Optimizer, torch.bfloat16, 5e-2),
    ],
)
def test_sixteen_bits(wrapper, dtype, tolerance, max_norm):
    """Equal up to rounding in 16 bits; norms exclude the loss scale, which doubles every 4 updates here."""
    data = batches(12, 2)
    model = network(dtype)
    optimizer = wrapper.build_optimizer(options(bf16=dtype == torch.bfloat16), list(model.parameters()))
    norms = train(model, optimizer, data, max_norm)
    expected, expected_norms = train_plainly(data, max_norm)
    assert norms == pytest.approx(expected_norms, rel=2 * tolerance)
    assert_close(model, expected, tolerance)
    assert {value.dtype for state in optimizer.optimizer.state.values() for value in state.values()} == {torch.float32}
    if dtype == torch.float16:
        assert optimizer.scaler.loss_scale == 2**13


@pytest.mark.parametrize("wrapper", [FP16Optimizer, MemoryEfficientFP16Optimizer])
def test_an_overflow_leaves_no_trace(wrapper):
    data = batches(4, 1)
    model = network(torch.float16)
    optimizer = wrapper.build_optimizer(options(), list(model.parameters()))
    train(model, optimizer, data[:2], 0.3)
    before = [parameter.clone() for parameter in model.parameters()]
    optimizer.zero_grad()
    optimizer.backward(1e6 * summed_loss(model, *data[2][0]))
    optimizer.multiply_grads(0.5)
    with pytest.raises(OverflowError):
        optimizer.clip_grad_norm(0.3)
    optimizer.zero_grad()
    assert optimizer.scaler.loss_scale == 2**9
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))
    norms = train(model, optimizer, data[2:], 0.3)
    expected, expected_norms = train_plainly(data, 0.3)
    assert norms == pytest.approx(expected_norms[2:], rel=4e-2)
    assert_close(model, expected, 2e-2)


# PyTorch's warning about fairseq's scaler without CUDA.
amp_warnings = pytest.mark.filterwarnings("ignore::FutureWarning:fairseq", "ignore:torch.cuda.amp.GradScaler")


def amp_optimizer(model):
    """Return fairseq's AMPOptimizer with a scaler for the CPU; fairseq's own is for CUDA, and disabled without it."""
    optimizer = AMPOptimizer.build_optimizer(options(), list(model.parameters()))
    optimizer._grad_scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
    return optimizer


@amp_warnings
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "foreach"])
def test_amp_undoes_the_loss_scale_once(monkeypatch, fused):
    """Fairseq alone would do so twice, and epsilon would be a thousand times too large for the gradients."""
    monkeypatch.setattr(fused_adamw, "has_fused_kernels", lambda device, dtype: fused)
    data = batches(8, 2)
    model = network()
    optimizer = amp_optimizer(model)
    norms = train(model, optimizer, data, 0.3)
    assert optimizer.scaler.get_scale() == 2**12
    expected, expected_norms = train_plainly(data, 0.3)
    assert norms == pytest.approx(expected_norms, rel=1e-5)
    assert_close(model, expected, 1e-6)


@amp_warnings
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "foreach"])
def test_amp_skips_an_overflow(monkeypatch, fused):
    monkeypatch.setattr(fused_adamw, "has_fused_kernels", lambda device, dtype: fused)
    data = batches(4, 1)
    model = network()
    optimizer = amp_optimizer(model)
    train(model, optimizer, data[:2], 0.3)
    before = [parameter.clone() for parameter in model.parameters()]
    optimizer.zero_grad()
    optimizer.backward(float("inf") * summed_loss(model, *data[2][0]))
    optimizer.multiply_grads(0.5)
    assert not optimizer.clip_grad_norm(0.3).isfinite()
    optimizer.step()  # as fairseq's trainer does, to lower the scale
    assert optimizer.scaler.get_scale() == 2**9
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))
    train(model, optimizer, data[2:], 0.3)
    assert_close(model, train_plainly(data, 0.3)[0], 1e-6)


def test_multiplying_twice_and_a_scale():
    """As FSDP and slow-momentum backends do; `scale` divides."""
    model, other = network(), network()
    (parts,) = batches(1, 1)
    for built, factors, scale in ((model, (0.5, 0.25), 4.0), (other, (0.5 * 0.25 / 4.0,), 1.0)):
        optimizer = FusedAdamW(FusedAdamWConfig(**{**SETTINGS, "adam_eps": 1.0}), built.parameters())
        optimizer.zero_grad()
        optimizer.backward(summed_loss(built, *parts[0]))
        for factor in factors:
            optimizer.multiply_grads(factor)
        optimizer.step(scale=scale)
    assert_close(model, other, 1e-7)


def test_dropped_gradients_leave_no_factor():
    """Gradients that are dropped before a step lose their factor too, as after running out of memory."""
    model = network()
    optimizer = FusedAdamW(FusedAdamWConfig(**SETTINGS), model.parameters())
    data = batches(2, 1)
    optimizer.backward(summed_loss(model, *data[0][0]))
    optimizer.multiply_grads(0.001)
    optimizer.clip_grad_norm(0.001)
    train(model, optimizer, data, 0.3)
    assert_close(model, train_plainly(data, 0.3)[0], 1e-6)


def test_the_norm_of_ranks_that_have_other_parameters():
    model = network()
    optimizer = FusedAdamW(FusedAdamWConfig(**SETTINGS), model.parameters())
    optimizer.backward(summed_loss(model, *batches(1, 1)[0][0]))
    norm = optimizer.clip_grad_norm(0)
    assert optimizer.clip_grad_norm(0, aggregate_norm_fn=lambda own: 3 * own) == pytest.approx(3 * float(norm))


def test_no_gradients():
    model = network()
    optimizer = FusedAdamW(FusedAdamWConfig(**SETTINGS), model.parameters())
    before = [parameter.clone() for parameter in model.parameters()]
    assert optimizer.clip_grad_norm(1.0) == 0
    optimizer.step()
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))


def test_moments_of_pytorchs_own_adamw():
    """PyTorch's AdamW is unfused, and its step counts stay on the CPU; its moments load here and vice versa."""
    data = batches(6, 1)
    model = network()
    optimizer = FusedAdamW(FusedAdamWConfig(**SETTINGS), model.parameters())
    train(model, optimizer, data[:3], 0.3)
    plain = torch.optim.AdamW([{**group, "fused": None, "foreach": None} for group in optimizer.param_groups])
    plain.load_state_dict(optimizer.state_dict())
    saved = plain.state_dict()
    for group in saved["param_groups"]:
        group.update(fused=None, foreach=None, lr=1.0)
    resumed = FusedAdamW(FusedAdamWConfig(**SETTINGS), model.parameters())
    resumed.load_state_dict(saved, {"lr": SETTINGS["lr"][0]})
    assert [(group["fused"], group["foreach"]) for group in resumed.param_groups] == [(True, False)] * 2
    train(model, resumed, data[3:], 0.3)
    assert_close(model, train_plainly(data, 0.3)[0], 1e-6)


def test_moments_of_other_parameters():
    model = network()
    whole = FusedAdamW(FusedAdamWConfig(**SETTINGS), model.parameters())
    part = FusedAdamW(FusedAdamWConfig(**SETTINGS), model[2].parameters())
    with pytest.raises(UserError) as raised:
        part.load_state_dict(whole.state_dict())
    assert str(raised.value) == (
        "the checkpoint's optimizer trains 2 + 2 parameters, but this run 1 + 1 parameters: give the options that it "
        "was trained with (--freeze-embeddings, --freeze-layers, --lora-rank, --lora-targets, --weight-decay, "
        "--factored-moments), or --reset-optimizer"
    )


def test_flattened_parameters():
    flat = nn.Parameter(torch.zeros(5))
    with pytest.raises(UserError, match=r"^--optimizer fused_adamw needs --weight-decay 0 if "):
        FusedAdamW(FusedAdamWConfig(**SETTINGS), [flat])
    assert FusedAdamW(FusedAdamWConfig(**{**SETTINGS, "weight_decay": 0.0}), [flat]).supports_flat_params


def test_a_device_without_fused_kernels(caplog):
    caplog.set_level(logging.DEBUG, logger=fused_adamw.__name__)
    fused_adamw.has_fused_kernels.cache_clear()
    assert fused_adamw.has_fused_kernels(torch.device("cpu"), torch.float32) and not caplog.messages
    assert not fused_adamw.has_fused_kernels(torch.device("meta"), torch.float32)
    assert caplog.messages[0].startswith("AdamW runs unfused: ")


def test_the_optimizer_of_each_type():
    for dtype, kind in ((torch.float32, torch.optim.AdamW), (torch.bfloat16, SixteenBitAdamW)):
        assert type(FusedAdamW(FusedAdamWConfig(**SETTINGS), network(dtype).parameters()).optimizer) is kind


OF_SIXTEEN_BITS = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "fused": True}


def gradients(count, size=1e-4):
    generator = torch.Generator().manual_seed(0)
    return [size * (1 + 0.1 * torch.randn(3, 2, generator=generator)) for _ in range(count)]


def updated(optimizer, parameter, values):
    for value in values:
        parameter.grad = value.to(parameter.dtype)
        optimizer.step()
    return parameter


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_updates_are_those_of_32_bits(dtype):
    """The squares of such gradients, 1e-8, are 0 in float16; PyTorch's own AdamW would then divide by epsilon."""
    values = [value.to(dtype).float() for value in gradients(20)]
    wide, narrow = nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(3, 2, dtype=dtype))
    plain, ours = torch.optim.AdamW([wide], **OF_SIXTEEN_BITS), SixteenBitAdamW([narrow], **OF_SIXTEEN_BITS)
    for value in values:
        updated(plain, wide, [value])
        updated(ours, narrow, [value])
        for name, moment in plain.state[wide].items():
            torch.testing.assert_close(ours.state[narrow][name], moment, atol=0, rtol=0)
        # Each update is rounded to the type; there are at most 20.
        torch.testing.assert_close(narrow.float(), wide, atol=0, rtol=20 * torch.finfo(dtype).eps)


def test_the_divisor_and_overflows():
    values = [value.bfloat16() for value in gradients(2)]
    one, other = (nn.Parameter(torch.ones(3, 2, dtype=torch.bfloat16)) for _ in range(2))
    plain, divided = SixteenBitAdamW([one], **OF_SIXTEEN_BITS), SixteenBitAdamW([other], **OF_SIXTEEN_BITS)
    divided.grad_scale = torch.tensor(1024.0)
    updated(plain, one, values)
    updated(divided, other, [1024 * value for value in values])
    assert torch.equal(one, other)
    divided.found_inf = torch.tensor(1.0)
    updated(divided, other, [torch.full((3, 2), float("inf"))])
    assert torch.equal(one, other)
    assert divided.state[other]["step"] == 2


def test_loads_its_moments_unchanged():
    values = gradients(8)
    whole, half = (nn.Parameter(torch.zeros(3, 2, dtype=torch.bfloat16)) for _ in range(2))
    updated(SixteenBitAdamW([whole], **OF_SIXTEEN_BITS), whole, values)
    first = SixteenBitAdamW([half], **OF_SIXTEEN_BITS)
    updated(first, half, values[:4])
    resumed = SixteenBitAdamW([half], **OF_SIXTEEN_BITS)
    resumed.load_state_dict(first.state_dict())
    assert all(torch.equal(resumed.state[half][name], value) for name, value in first.state[half].items())
    updated(resumed, half, values[4:])
    assert torch.equal(half, whole)
    assert not torch.equal(first.state[half]["exp_avg"], resumed.state[half]["exp_avg"])  # copies, not shared


def test_a_closure_and_parameters_without_gradients():
    with_gradient, without = (nn.Parameter(torch.ones(2, dtype=torch.bfloat16)) for _ in range(2))
    optimizer = SixteenBitAdamW([with_gradient, without], **OF_SIXTEEN_BITS)

    def closure():
        loss = (with_gradient**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 2
    assert torch.equal(without, torch.ones(2)) and (with_gradient < 1).all()
