"""Parameters of 16 bits alone: their moments are of 32."""

import pytest
import torch
from torch import nn

from s2sft_fairseq.optim.sixteen_bit_adamw import SixteenBitAdamW

SETTINGS = {"lr": 0.1, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0, "fused": True}


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
    """The squares of such gradients, 1e-8, are 0 in float16; PyTorch's own AdamW then divides by epsilon."""
    values = [value.to(dtype).float() for value in gradients(20)]
    wide, narrow = nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(3, 2, dtype=dtype))
    plain, ours = torch.optim.AdamW([wide], **SETTINGS), SixteenBitAdamW([narrow], **SETTINGS)
    for value in values:
        updated(plain, wide, [value])
        updated(ours, narrow, [value])
        for name, moment in plain.state[wide].items():
            torch.testing.assert_close(ours.state[narrow][name], moment, atol=0, rtol=0)
        # Each update is rounded to the type; there have been no more than 20.
        torch.testing.assert_close(narrow.float(), wide, atol=0, rtol=20 * torch.finfo(dtype).eps)


def test_the_divisor_and_what_overflowed():
    values = [value.bfloat16() for value in gradients(2)]
    one, other = (nn.Parameter(torch.ones(3, 2, dtype=torch.bfloat16)) for _ in range(2))
    plain, divided = SixteenBitAdamW([one], **SETTINGS), SixteenBitAdamW([other], **SETTINGS)
    divided.grad_scale = torch.tensor(1024.0)
    updated(plain, one, values)
    updated(divided, other, [1024 * value for value in values])
    assert torch.equal(one, other)
    divided.found_inf = torch.tensor(1.0)
    updated(divided, other, [torch.full((3, 2), float("inf"))])
    assert torch.equal(one, other)
    assert divided.state[other]["step"] == 2


def test_loads_its_moments_as_they_were():
    values = gradients(8)
    whole, half = (nn.Parameter(torch.zeros(3, 2, dtype=torch.bfloat16)) for _ in range(2))
    updated(SixteenBitAdamW([whole], **SETTINGS), whole, values)
    first = SixteenBitAdamW([half], **SETTINGS)
    updated(first, half, values[:4])
    resumed = SixteenBitAdamW([half], **SETTINGS)
    resumed.load_state_dict(first.state_dict())
    assert all(torch.equal(resumed.state[half][name], value) for name, value in first.state[half].items())
    updated(resumed, half, values[4:])
    assert torch.equal(half, whole)
    assert not torch.equal(first.state[half]["exp_avg"], resumed.state[half]["exp_avg"])  # copies, not shared


def test_a_closure_and_parameters_without_gradients():
    with_gradient, without = (nn.Parameter(torch.ones(2, dtype=torch.bfloat16)) for _ in range(2))
    optimizer = SixteenBitAdamW([with_gradient, without], **SETTINGS)

    def closure():
        loss = (with_gradient**2).sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 2
    assert torch.equal(without, torch.ones(2)) and (with_gradient < 1).all()
