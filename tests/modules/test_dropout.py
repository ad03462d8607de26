"""Dropout from shared random numbers: the share of dropped elements, and that the backward pass drops the same ones."""

import pytest
import torch

from s2sft_fairseq.modules.dropout import Dropout, draw_kept, kept_again

COUNT = 400_003  # not a multiple of the four elements that share a random number


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def within_five_sigma(hits, count, probability):
    return abs(hits - count * probability) <= 5 * (count * probability * (1 - probability)) ** 0.5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("probability", [0.01, 0.1, 0.5, 0.9])
def test_share_and_scale(probability, dtype):
    torch.manual_seed(0)
    x = torch.full((COUNT,), 3.0, dtype=dtype)
    out = Dropout(probability)(x)
    assert out.dtype == dtype
    dropped = out == 0
    sigma = (probability * (1 - probability) / COUNT) ** 0.5
    assert abs(dropped.double().mean().item() - probability) <= 5 * sigma + 2**-17
    kept = out[~dropped].double()
    torch.testing.assert_close(kept, torch.full_like(kept, 3 / (1 - probability)), rtol=torch.finfo(dtype).eps, atol=0)


def test_elements_are_dropped_independently():
    """Elements that share a random number are independent too: each pair of the four is as frequent as by chance."""
    torch.manual_seed(0)
    probability = 0.3
    dropped = Dropout(probability)(torch.ones(COUNT // 4, 4)) == 0
    for first in range(4):
        assert within_five_sigma(int(dropped[:, first].sum()), len(dropped), probability)
        for second in range(first):
            both = int((dropped[:, first] & dropped[:, second]).sum())
            assert within_five_sigma(both, len(dropped), probability**2)
    neighbours = int((dropped[1:, 0] & dropped[:-1, 3]).sum())
    assert within_five_sigma(neighbours, len(dropped) - 1, probability**2)


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 5), (2, 0, 4), (7, 11, 13)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits(shape, dtype):
    torch.manual_seed(0)
    kept, bits = draw_kept(shape, 0.3, dtype)
    assert kept.shape == shape and kept.dtype == dtype
    assert set(kept.unique().tolist()) <= {0.0, 1.0}
    assert len(bits) == -(-kept.numel() // 8)
    assert torch.equal(kept_again(bits, shape, dtype), kept)


@pytest.mark.parametrize("probability", [2**-16, 0.0005, 0.37, 0.999])
def test_share(probability):
    torch.manual_seed(0)
    count = 4_000_000
    kept, _ = draw_kept((count,), probability, torch.float32)
    assert within_five_sigma(int((kept == 0).sum()), count, probability)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_gradient_is_dropped_at_the_same_places_as_the_result(dtype):
    torch.manual_seed(0)
    x = torch.randn(50, 41).to(dtype).requires_grad_()
    weight = torch.randn(50, 41).to(dtype)
    out = Dropout(0.4)(x)
    (gradient,) = torch.autograd.grad((out * weight).sum(), x)
    factor = (out != 0).double() / (1 - 0.4)
    tolerance = {"rtol": 2 * torch.finfo(dtype).eps, "atol": 0}
    torch.testing.assert_close(gradient.double(), weight.double() * factor, **tolerance)
    torch.testing.assert_close(out.double(), x.double() * factor, **tolerance)


def test_transposed_input():
    """If memory has another order than the elements, result and gradient still agree."""
    torch.manual_seed(0)
    x = torch.randn(7, 30, 5).transpose(0, 2).requires_grad_()
    out = Dropout(0.5)(x)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(out, x * gradient)
    assert set(gradient.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_probabilities_0_and_1(probability):
    x = torch.randn(100, requires_grad=True)
    out = Dropout(probability)(x)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    assert torch.equal(out, x * (1 - probability))
    assert torch.equal(gradient, torch.full_like(x, 1 - probability))


def test_no_dropout_outside_training():
    x = torch.randn(100)
    assert torch.equal(Dropout(0.5).eval()(x), x)


def test_draws_follow_the_seed_and_differ():
    dropout, x = Dropout(0.5), torch.ones(1000)
    torch.manual_seed(5)
    first, second = dropout(x), dropout(x)
    assert not torch.equal(first, second)
    torch.manual_seed(5)
    assert torch.equal(dropout(x), first)
    assert torch.equal(dropout(x), second)
    torch.manual_seed(6)
    assert not torch.equal(dropout(x), first)


def test_impossible_probability():
    with pytest.raises(ValueError, match="between 0 and 1"):
        Dropout(1.5)
