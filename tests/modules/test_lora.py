"""Linear layers with adapters compared with the two products."""

import pytest
import torch
from torch import nn

from s2sft_fairseq.modules.lora import LoRALinear, add_lora, merge_lora, merged_weight


def adapted(dropout=0.0, bias=True, dtype=torch.float32):
    """Return a layer with trained adapters: B is not zero."""
    torch.manual_seed(0)
    layer = LoRALinear(nn.Linear(6, 5, bias=bias, dtype=dtype), rank=2, alpha=3.0, dropout=dropout)
    nn.init.normal_(layer.lora_b)
    return layer


def test_starts_as_the_original_layer():
    linear = nn.Linear(6, 5)
    layer = LoRALinear(linear, rank=2, alpha=3.0, dropout=0.5)
    x = torch.randn(4, 6)
    assert torch.equal(layer(x), linear(x))
    assert layer.lora_a.abs().sum() > 0


@pytest.mark.parametrize("shape", [(6,), (3, 6), (2, 3, 6), (0, 6)])
@pytest.mark.parametrize("bias", [True, False])
def test_adds_the_scaled_product(bias, shape):
    layer, x = adapted(bias=bias), torch.randn(shape)
    with torch.no_grad():
        expected = x @ layer.weight.T + x @ layer.lora_a.T @ layer.lora_b.T * (3 / 2)
        torch.testing.assert_close(layer(x), expected + layer.bias if bias else expected, atol=1e-5, rtol=0)


def test_only_the_adapters_learn():
    layer = adapted()
    layer(torch.randn(4, 6)).square().sum().backward()
    learned = [name for name, parameter in layer.named_parameters() if parameter.grad is not None]
    assert learned == ["lora_a", "lora_b"]
    assert all(parameter.requires_grad == (name in learned) for name, parameter in layer.named_parameters())


def test_dropout_applies_to_the_input_of_adapters():
    layer, x = adapted(dropout=0.5), torch.ones(4000, 6)
    with torch.no_grad():
        added = layer(x) - nn.functional.linear(x, layer.weight, layer.bias)
        expected = layer.eval()(x[:1]) - nn.functional.linear(x[:1], layer.weight, layer.bias)
    assert added.std(dim=0).min() > 0.1
    error = added.std(dim=0).max() / 4000**0.5
    torch.testing.assert_close(added.mean(dim=0, keepdim=True), expected, atol=5 * float(error), rtol=0)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05), (torch.float64, 1e-12)]
)
@pytest.mark.parametrize("bias", [True, False])
def test_merged(bias, dtype, tolerance):
    model = nn.ModuleDict({"first": adapted(bias=bias, dtype=dtype), "inner": nn.Sequential(adapted(dtype=dtype))})
    x = torch.randn(7, 6, dtype=dtype)
    with torch.no_grad():
        expected = model["first"](x), model["inner"](x)
        merge_lora(model.eval())
        assert type(model["first"]) is type(model["inner"][0]) is nn.Linear
        assert not model["first"].training
        for found, other in zip((model["first"](x), model["inner"](x)), expected, strict=True):
            torch.testing.assert_close(found, other, atol=tolerance, rtol=tolerance)


def test_merged_in_32_bits():
    """The product, 90,000, would overflow in 16 bits."""
    a, b = torch.full((1, 1), 300.0).half(), torch.full((1, 1), 300.0).half()
    assert merged_weight(torch.ones(1, 1).half(), a, b, 1e-4) == 10


def test_named_layers_get_adapters():
    model = nn.ModuleList(nn.ModuleDict({"one": nn.Linear(3, 4), "two": nn.Linear(4, 3)}) for _ in range(2))
    add_lora(model, ("two",), rank=2, alpha=1.0, dropout=0.0)
    assert [name for name, _ in model.named_parameters() if "lora" in name] == [
        *("0.two.lora_a", "0.two.lora_b"),
        *("1.two.lora_a", "1.two.lora_b"),
    ]
    assert (model[0]["two"].lora_a.shape, model[0]["two"].lora_b.shape) == ((2, 4), (3, 2))
