"""Linear layers for training compared with PyTorch's own."""

import pytest
import torch
from torch.nn import functional as F

from s2sft_fairseq.modules import matmul as module
from s2sft_fairseq.modules.matmul import Linear, linear, speed_up

SHAPES = {"rows": (37,), "a batch": (3, 5), "none": (0,)}


@pytest.fixture(autouse=True)
def any_size(monkeypatch):
    """Let tiny products take the fast path too."""
    monkeypatch.setattr(module, "LEAST", 1)


def case(shape, dtype=torch.float32, bias=True):
    generator = torch.Generator().manual_seed(0)
    sizes = (*shape, 24), (16, 24), (16,)
    tensors = [torch.randn(size, generator=generator).to(dtype).requires_grad_() for size in sizes]
    return tensors if bias else tensors[:2]


def result_and_gradients(function, tensors):
    """Return the result, and the gradients of a weighted sum of it."""
    result = function(*tensors)
    weight = torch.linspace(-1, 1, result.numel()).view_as(result)
    return result, *torch.autograd.grad((weight * result).sum(), tensors)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_float32(shape, bias):
    tensors = case(shape, bias=bias)
    found, expected = (result_and_gradients(function, tensors) for function in (linear, F.linear))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bias", [True, False])
def test_bfloat16_products(bias):
    """Result and gradients are float32, as near to the exact ones as those of PyTorch's autocast, but not exact."""
    tensors = case((300,), bias=bias)
    exact = result_and_gradients(F.linear, tensors)

    def errors(function):
        with torch.autocast("cpu", torch.bfloat16):
            found = result_and_gradients(lambda *given: function(*given).float(), tensors)
        assert all(tensor.dtype == torch.float32 for tensor in found)
        return torch.tensor([((x - y).norm() / y.norm()).item() for x, y in zip(found, exact, strict=True)])

    ours, autocast = errors(linear), errors(F.linear)
    assert (ours <= 1.1 * autocast + 1e-6).all()
    assert (ours[:3] > 1e-4).all()


def test_bias_and_its_gradient_are_not_rounded():
    x, weight, bias = torch.zeros(4, 3), torch.ones(2, 3), torch.tensor([1 + 1e-6, 3.3], requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        result = linear(x, weight, bias)
    assert torch.equal(result, bias.expand(4, 2))
    result.backward(torch.full((4, 2), 1 + 1e-6))
    assert torch.equal(bias.grad, torch.full((4, 2), 1 + 1e-6).sum(dim=0))


def test_saved_tensors_are_half_as_large():
    def kept(enabled):
        sizes = []
        x, weight, bias = case((300,))
        with (
            torch.autocast("cpu", torch.bfloat16, enabled=enabled),
            torch.autograd.graph.saved_tensors_hooks(lambda saved: sizes.append(saved.nbytes), lambda: None),
        ):
            linear(x, weight, bias)
        return sum(sizes)

    assert 2 * kept(True) == kept(False)


def test_frozen_weights_get_no_gradient():
    x, weight, bias = case((5,))
    result = linear(x, weight.detach(), bias.detach())
    (gradient,) = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(gradient, weight.detach().sum(dim=0).expand(5, 24))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_types_are_left_to_pytorch(dtype):
    tensors = case((7,), dtype)
    assert torch.equal(linear(*tensors), F.linear(*tensors))


def test_small_products_are_left_to_pytorch(monkeypatch):
    monkeypatch.setattr(module, "LEAST", 7 * 24 * 16 + 1)
    tensors = case((7,))
    assert linear(*tensors).grad_fn.name() == F.linear(*tensors).grad_fn.name()
    assert linear(*case((8,))).grad_fn.name() != F.linear(*tensors).grad_fn.name()


def test_layers_of_a_model_that_others_built():
    class Own(torch.nn.Linear):
        pass

    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ModuleDict({"inner": torch.nn.Linear(3, 2)}), Own(2, 2))
    before = dict(model.named_parameters())
    speed_up(model)
    assert [type(layer) for layer in (model[0], model[1]["inner"], model[2])] == [Linear, Linear, Own]
    assert all(value is before[name] for name, value in model.named_parameters())


def test_the_layer():
    layer = Linear(24, 16)
    x = torch.randn(3, 24)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))
