"""Packed and quantized layers compared with plain ones."""

import pytest
import torch
from torch import nn

from s2sft_fairseq.modules.cpu_linear import (
    PackedLinear,
    QuantizedLinear,
    can_pack,
    can_quantize,
    pack_linear_layers,
    pack_weight,
)

needs_kernels = pytest.mark.skipif(not can_pack(torch.ones(1, 1)), reason="this PyTorch has no packed kernels")
needs_int8 = pytest.mark.skipif(not can_quantize(torch.ones(1, 1)), reason="this CPU has no 8-bit kernels")

SHAPES = [(16, 16), (48, 80), (384, 1152), (7, 3), (100, 1)]
INPUTS = {
    "one row": lambda width: torch.randn(1, width),
    "ten rows": lambda width: torch.randn(10, width),
    "200 rows": lambda width: torch.randn(200, width),
    "three dimensions": lambda width: torch.randn(3, 13, width),
    "last position": lambda width: torch.randn(4, 9, width)[:, -1],
    "last positions": lambda width: torch.randn(4, 9, width)[:, -2:],
    "transposed": lambda width: torch.randn(width, 6).t(),
    "merged heads": lambda width: torch.randn(5, 2, width).transpose(0, 1),
    "repeated": lambda width: torch.randn(1, width).expand(5, width),
    "no rows": lambda width: torch.randn(0, width),
    "no rows in three dimensions": lambda width: torch.randn(2, 0, width),
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def quantized_naively(x):
    """Round each row to 127 steps of its largest value; return float64, with the rounding of the given float32."""
    step = x.abs().amax(dim=-1, keepdim=True) / 127
    return torch.where(step > 0, (x / step).round().double() * step, 0.0)


@needs_kernels
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", INPUTS.values(), ids=INPUTS)
def test_a_packed_layer_equals_a_plain_one(rows, shape, bias):
    plain = nn.Linear(*shape, bias=bias)
    x = rows(shape[0])
    with torch.no_grad():
        torch.testing.assert_close(PackedLinear(plain.weight, plain.bias)(x), plain(x), rtol=1e-5, atol=1e-5)


@needs_kernels
def test_every_number_of_rows_up_to_200():
    plain = nn.Linear(24, 40)
    packed = PackedLinear(plain.weight, plain.bias)
    x = torch.randn(200, 24)
    with torch.no_grad():
        expected = plain(x)
        for rows in range(1, 201):
            torch.testing.assert_close(packed(x[:rows]), expected[:rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits_if_the_cpu_supports_them(dtype):
    plain = nn.Linear(48, 80).to(dtype)
    if not can_pack(plain.weight):
        pytest.skip("this CPU does not multiply in this data type")
    x = torch.randn(3, 5, 48).to(dtype)
    with torch.no_grad():
        packed = PackedLinear(plain.weight, plain.bias)(x)
        assert packed.dtype == dtype
        tolerance = 2 * torch.finfo(dtype).eps
        torch.testing.assert_close(packed, plain(x), rtol=tolerance, atol=tolerance)


@needs_int8
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rows", INPUTS.values(), ids=INPUTS)
def test_a_quantized_layer_multiplies_rounded_numbers(rows, shape, bias):
    plain = nn.Linear(*shape, bias=bias)
    x = rows(shape[0])
    with torch.no_grad():
        expected = quantized_naively(x) @ quantized_naively(plain.weight).t()
        expected = expected + plain.bias if bias else expected
        result = QuantizedLinear(plain.weight, plain.bias)(x)
    torch.testing.assert_close(result, expected.float(), rtol=1e-4, atol=1e-5)


@needs_int8
def test_a_quantized_row_does_not_depend_on_the_others():
    plain = nn.Linear(48, 80)
    quantized = QuantizedLinear(plain.weight, plain.bias)
    x = torch.randn(40, 48)
    x[7] *= 100
    with torch.no_grad():
        together = quantized(x)
        for row in range(len(x)):
            torch.testing.assert_close(quantized(x[row : row + 1])[0], together[row], rtol=1e-6, atol=1e-6)


@needs_int8
def test_rows_and_outputs_of_zeros():
    plain = nn.Linear(48, 4)
    with torch.no_grad():
        plain.weight[2] = 0
        quantized = QuantizedLinear(plain.weight, plain.bias)
        torch.testing.assert_close(quantized(torch.zeros(2, 48)), plain.bias.expand(2, 4))
        torch.testing.assert_close(quantized(torch.randn(2, 48))[:, 2], plain.bias[2].expand(2))


@needs_int8
def test_the_largest_numbers_do_not_overflow():
    plain = nn.Linear(1024, 3, bias=False)
    nn.init.constant_(plain.weight, -2.0)
    with torch.no_grad():
        result = QuantizedLinear(plain.weight, None)(torch.ones(5, 1024))
    torch.testing.assert_close(result, torch.full((5, 3), -2048.0))


@needs_int8
def test_no_reference_kernel(capfd):
    """OneDNN could fall back to a kernel that is a thousand times slower, for signed inputs on CPUs without AMX."""
    plain = nn.Linear(64, 32)
    layers = [QuantizedLinear(plain.weight, plain.bias), PackedLinear(plain.weight, plain.bias)]
    with torch.no_grad(), torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):
        for layer in layers:
            layer(torch.randn(5, 64))
    products = [
        line for line in capfd.readouterr().out.splitlines() if ",exec,cpu,matmul," in line or "inner_product" in line
    ]
    assert len(products) == len(layers)
    assert not [line for line in products if ",ref" in line]


class TwoLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(16, 24)
        self.inner = nn.Sequential(nn.LayerNorm(24), nn.ModuleList([nn.Linear(24, 8, bias=False)])[0])
        self.table = nn.Embedding(5, 8)

    def forward(self, x):
        return self.inner(self.first(x))


@needs_kernels
def test_every_linear_layer_is_replaced_and_its_weight_freed():
    model = TwoLayers()
    x = torch.randn(3, 16)
    with torch.no_grad():
        expected = model(x)
        pack_linear_layers(model)
        torch.testing.assert_close(model(x), expected, rtol=1e-5, atol=1e-5)
    assert not any(isinstance(module, nn.Linear) for module in model.modules())
    assert {name for name, _ in model.named_parameters()} == {"inner.0.weight", "inner.0.bias", "table.weight"}


@needs_int8
def test_quantize_reaches_every_linear_layer():
    model = TwoLayers()
    pack_linear_layers(model, quantize=True)
    assert sum(isinstance(module, QuantizedLinear) for module in model.modules()) == 2


@pytest.mark.parametrize("quantize", [False, True])
def test_layers_without_kernels_stay(quantize, caplog):
    """There are no kernels for 64 bits or for another device; the debug log says so."""
    for model in (TwoLayers().double(), TwoLayers().to("meta")):
        before = list(model.modules())
        with caplog.at_level("DEBUG"):
            pack_linear_layers(model, quantize=quantize)
        assert list(model.modules()) == before
    assert "no packed kernels for first: torch.float64 on cpu" in caplog.messages
    assert "no packed kernels for first: torch.float32 on meta" in caplog.messages


def test_a_pytorch_without_the_operators(monkeypatch):
    class NoOperators:
        pass

    monkeypatch.setattr(torch.ops, "mkldnn", NoOperators())
    monkeypatch.setattr(torch.ops, "onednn", NoOperators())
    assert pack_weight(torch.ones(2, 2), None) is None
    assert pack_weight(torch.ones(2, 2), None, quantize=True) is None


def test_a_pytorch_without_onednn(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert pack_weight(torch.ones(2, 2), None) is None
    assert pack_weight(torch.ones(2, 2), None, quantize=True) is None
