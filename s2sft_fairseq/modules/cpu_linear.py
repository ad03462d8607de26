"""Linear layers for inference on CPUs, with weights that are packed once and not in every call (oneDNN).

With few rows, as in a step of decoding, packing the weight takes longer than multiplying with it. The quantized layers
multiply in 8 bits with dynamic quantization: each call quantizes its input.
"""

import logging
import os

import torch
from torch import Tensor, nn

logger = logging.getLogger(__name__)

# oneDNN compiles a kernel for each number of rows and by default caches about fifty (PyTorch 2.13). The kernels of
# decoding steps would evict each other, and each step would compile them again. oneDNN reads the variable at the first
# kernel.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "1024")

LARGEST_INT8 = 127
ZERO_POINT = 128
"""Added to the 8-bit input to make it unsigned: without AMX, oneDNN has fast kernels for unsigned inputs only, and is a
thousand times slower for signed ones."""
PLAIN_OUTPUT: tuple[object, ...] = (None, 1.0, 0, torch.float32, "none", [], "")
"""Arguments of the kernel: no bias, an output that is not quantized, no activation."""
# Weights are packed for this number of rows, and then serve any number. Packing for 1 row is slower with more rows;
# packing for 10, 40 and 160 rows is the same.
ROWS_HINT = 40
# For each data type, the function that tells whether oneDNN supports it on this CPU.
_SUPPORT = {
    torch.float32: None,
    torch.bfloat16: "_is_mkldnn_bf16_supported",
    torch.float16: "_is_mkldnn_fp16_supported",
}

# PyTorch's functions that tell whether the CPU has AMX or AVX512-BF16.
_BF16_INSTRUCTIONS = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")


class QuantizedLinear(nn.Module):
    """A linear layer for inference: int8 weights with a scale for each output, and 8-bit inputs with one for each row.

    Both are symmetric. Because each row has its own scale, its result does not depend on the other rows of the batch.
    R: rows, I: inputs, O: outputs.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Quantize and pack the weight (O, I); the bias (O,) does not change."""
        super().__init__()
        self.out_features = len(weight)
        # Not a buffer: a packed weight can neither be moved nor saved.
        rows, scales = scaled_rows(weight.detach())
        self.packed = torch.ops.onednn.qlinear_prepack(rows.to(torch.int8), None)
        self.scales, self.zero_points = scales.squeeze(1), torch.zeros(len(weight), dtype=torch.int64)
        self.bias = None if bias is None else bias.detach()

    def forward(self, x: Tensor) -> Tensor:
        """Multiply.

        Shape:
            (..., I) -> (..., O), both float32.
        """
        if not x.numel():
            return x.new_empty(*x.shape[:-1], self.out_features)
        # (..., I) -> (R, I), (R, 1)
        rows, row_scales = scaled_rows(x.flatten(0, -2))
        rows = rows.add_(ZERO_POINT).to(torch.uint8)
        # The kernel supports only one scale for all rows, so the scale of each row and the bias are applied afterwards.
        products: Tensor = torch.ops.onednn.qlinear_pointwise(
            rows, 1.0, ZERO_POINT, self.packed, self.scales, self.zero_points, *PLAIN_OUTPUT
        ).mul_(row_scales)
        if self.bias is not None:
            products.add_(self.bias)
        products = products.unflatten(0, x.shape[:-1])
        return products


def scaled_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Scale each row so that its largest magnitude becomes 127, and round it to integers.

    Shape:
        (R, I) -> (R, I), scales (R, 1), both of the input's type.
    """
    # A row of zeros may have any scale but 0.
    scales = (x.abs().amax(dim=1, keepdim=True) / LARGEST_INT8).clamp_(min=torch.finfo(x.dtype).tiny)
    return (x / scales).round_(), scales


def can_quantize(weight: Tensor) -> bool:
    """Return whether PyTorch and CPU have the 8-bit kernels for a weight, which must be float32 and on the CPU."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and all(hasattr(torch.ops.onednn, name) for name in ("qlinear_prepack", "qlinear_pointwise"))
        and _multiplies_exactly()
    )


def _multiplies_exactly() -> bool:
    """Test the largest numbers: without VNNI instructions their products are summed in 16 bits and overflow."""
    return bool(QuantizedLinear(torch.ones(1, 4), None)(torch.ones(1, 4)).isclose(torch.tensor(4.0)))


class PackedLinear(nn.Module):
    """A linear layer for inference on the CPU, in the data type of its weight, optionally followed by GELU.

    I: inputs, O: outputs.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, gelu: bool = False) -> None:
        """Pack the weight (O, I); the bias (O,) does not change."""
        super().__init__()
        self.out_features = len(weight)
        # Not a buffer: a packed weight can neither be moved nor saved.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), ROWS_HINT)
        self.bias = None if bias is None else bias.detach()
        # The activation, its scalars and its approximation, as the kernel takes them.
        self.activation: tuple[str, list[float | None], str] = ("gelu", [], "none") if gelu else ("none", [], "")

    def forward(self, x: Tensor) -> Tensor:
        """Multiply.

        Shape:
            (..., I) -> (..., O).
        """
        if not x.numel():
            return x.new_empty(*x.shape[:-1], self.out_features)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, *self.activation)
        return product


def can_pack(weight: Tensor) -> bool:
    """Return whether PyTorch and CPU have the packed kernels for a weight."""
    if weight.device.type != "cpu" or weight.dtype not in _SUPPORT or not torch.backends.mkldnn.is_available():
        return False
    needed = ["_reorder_linear_weight", "_linear_pointwise"]
    if question := _SUPPORT[weight.dtype]:
        needed.append(question)
    if not all(hasattr(torch.ops.mkldnn, name) for name in needed):
        return False
    return question is None or getattr(torch.ops.mkldnn, question)()


def multiplies_bf16() -> bool:
    """Return whether the CPU has bfloat16 instructions; without them bfloat16 is slower than float32."""
    return any(getattr(torch.cpu, name, bool)() for name in _BF16_INSTRUCTIONS)


def pack_weight(weight: Tensor, bias: Tensor | None, *, quantize: bool = False) -> nn.Module | None:
    """Return a packed layer with a weight (O, I) and a bias (O,), in 8 bits with ``quantize``; None without kernels."""
    if quantize and can_quantize(weight):
        return QuantizedLinear(weight, bias)
    return PackedLinear(weight, bias) if can_pack(weight) else None


def pack_linear_layers(model: nn.Module, *, quantize: bool = False) -> None:
    """Replace every linear layer within a model by a packed one, in place. Weights are freed one by one.

    A packed model can neither be trained nor moved nor converted nor saved. Layers without kernels do not change.
    """
    for name, child in model.named_children():
        if not isinstance(child, nn.Linear):
            pack_linear_layers(child, quantize=quantize)
        elif (packed := pack_weight(child.weight, child.bias, quantize=quantize)) is not None:
            setattr(model, name, packed)
        else:
            logger.debug(f"no packed kernels for {name}: {child.weight.dtype} on {child.weight.device}")
