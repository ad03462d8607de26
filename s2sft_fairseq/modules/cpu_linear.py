"""Linear layers for inference on CPUs, whose weights are laid out once, not at every call (oneDNN).

With few rows, as in a step of decoding, laying the weight out takes longer than multiplying with it. The quantized
layers multiply in 8 bits, with dynamic quantization: of the input, as it comes.
"""

import logging
import os

import torch
from torch import Tensor, nn

logger = logging.getLogger(__name__)

# A kernel is made for each number of rows, and left to itself oneDNN keeps some fifty of them (PyTorch 2.13): those of
# a decoder's steps push each other out, and each step makes its own again. Read when the first one is made.
os.environ.setdefault("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "1024")

LARGEST_INT8 = 127
ZERO_POINT = 128
"""Added to the input in 8 bits: without AMX, oneDNN has fast kernels for unsigned inputs alone, and takes a thousand
times as long for signed ones."""
PLAIN_OUTPUT: tuple[object, ...] = (None, 1.0, 0, torch.float32, "none", [], "")
"""To the kernel: no bias, an output that is not quantized, no activation."""
# The layout is made for so many rows and serves any number. That for 1 row is slower for more; those for 10, 40 and 160
# are one and the same.
ROWS_HINT = 40
# What asks oneDNN whether the CPU can, for each data type that it multiplies.
_SUPPORT = {
    torch.float32: None,
    torch.bfloat16: "_is_mkldnn_bf16_supported",
    torch.float16: "_is_mkldnn_fp16_supported",
}

# PyTorch's names for them.
_BF16_INSTRUCTIONS = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")


class QuantizedLinear(nn.Module):
    """A linear layer for inference: weights in int8 with one scale for each output, the input with one for each row.

    Both are symmetric. With a scale of its own, a row's result does not depend on what else is in the batch.
    R: rows, I: inputs, O: outputs.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        """Quantize and lay out the weight (O, I), and keep the bias (O,) as it is."""
        super().__init__()
        self.out_features = len(weight)
        # Not buffers: this layout can neither be moved nor saved.
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
        # The kernel knows one scale for all rows only: that of each row is applied behind it, and so is the bias.
        products: Tensor = torch.ops.onednn.qlinear_pointwise(
            rows, 1.0, ZERO_POINT, self.packed, self.scales, self.zero_points, *PLAIN_OUTPUT
        ).mul_(row_scales)
        if self.bias is not None:
            products.add_(self.bias)
        products = products.unflatten(0, x.shape[:-1])
        return products


def scaled_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Round each row to whole numbers, with a scale of its own by which its largest becomes 127 or -127.

    Shape:
        (R, I) -> (R, I), scales (R, 1), both of the input's type.
    """
    # A row of zeros may have any scale but 0.
    scales = (x.abs().amax(dim=1, keepdim=True) / LARGEST_INT8).clamp_(min=torch.finfo(x.dtype).tiny)
    return (x / scales).round_(), scales


def can_quantize(weight: Tensor) -> bool:
    """Tell whether PyTorch and CPU have the kernels for a weight, which must be float32 and on the CPU."""
    return (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and all(hasattr(torch.ops.onednn, name) for name in ("qlinear_prepack", "qlinear_pointwise"))
        and _multiplies_exactly()
    )


def _multiplies_exactly() -> bool:
    """Try the largest numbers: without VNNI instructions their products are summed in 16 bits, which overflow."""
    return bool(QuantizedLinear(torch.ones(1, 4), None)(torch.ones(1, 4)).isclose(torch.tensor(4.0)))


class PackedLinear(nn.Module):
    """A linear layer for inference on the CPU, in the data type of its weight, with GELU behind it if that is wanted.

    I: inputs, O: outputs.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, gelu: bool = False) -> None:
        """Lay out the weight (O, I); the bias (O,) is kept as it is."""
        super().__init__()
        self.out_features = len(weight)
        # Not buffers: this layout can neither be moved nor saved.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), ROWS_HINT)
        self.bias = None if bias is None else bias.detach()
        # An activation and which approximation of it, as the kernel names them.
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
    """Tell whether this PyTorch and this CPU have the kernels for a weight."""
    if weight.device.type != "cpu" or weight.dtype not in _SUPPORT or not torch.backends.mkldnn.is_available():
        return False
    needed = ["_reorder_linear_weight", "_linear_pointwise"]
    if question := _SUPPORT[weight.dtype]:
        needed.append(question)
    if not all(hasattr(torch.ops.mkldnn, name) for name in needed):
        return False
    return question is None or getattr(torch.ops.mkldnn, question)()


def multiplies_bf16() -> bool:
    """Tell whether the CPU has instructions that multiply in bfloat16; otherwise it is slower than in float32."""
    return any(getattr(torch.cpu, name, bool)() for name in _BF16_INSTRUCTIONS)


def pack_weight(weight: Tensor, bias: Tensor | None, *, quantize: bool = False) -> nn.Module | None:
    """Make a packed layer of a weight (O, I) and a bias (O,), in 8 bits with ``quantize``; None without kernels."""
    if quantize and can_quantize(weight):
        return QuantizedLinear(weight, bias)
    return PackedLinear(weight, bias) if can_pack(weight) else None


def pack_linear_layers(model: nn.Module, *, quantize: bool = False) -> None:
    """Replace every linear layer within a model, whose weights are let go one by one; in place.

    A model that has been packed can neither be trained nor moved nor converted nor saved. A layer that there are no
    kernels for stays as it is.
    """
    for name, child in model.named_children():
        if not isinstance(child, nn.Linear):
            pack_linear_layers(child, quantize=quantize)
        elif (packed := pack_weight(child.weight, child.bias, quantize=quantize)) is not None:
            setattr(model, name, packed)
        else:
            logger.debug(f"no packed kernels for {name}: {child.weight.dtype} on {child.weight.device}")
