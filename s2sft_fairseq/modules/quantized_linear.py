"""Linear layers that multiply in 8 bits on the CPU (oneDNN), with dynamic quantization: of the input, as it comes."""

import torch
from torch import Tensor, nn

LARGEST = 127
PLAIN_OUTPUT = (None, 1.0, 0, torch.float32, "none", [], "")
"""To the kernel: no bias, an output that is not quantized, no activation."""


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
        quantized, scales = quantize_rows(weight.detach())
        self.packed = torch.ops.onednn.qlinear_prepack(quantized, None)
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
        rows, row_scales = quantize_rows(x.flatten(0, -2))
        # The kernel knows one scale for all rows only: that of each row is applied behind it, and so is the bias.
        products = torch.ops.onednn.qlinear_pointwise(
            rows, 1.0, 0, self.packed, self.scales, self.zero_points, *PLAIN_OUTPUT
        ).mul_(row_scales)
        if self.bias is not None:
            products.add_(self.bias)
        return products.unflatten(0, x.shape[:-1])


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantize each row with a scale of its own, by which its largest number becomes 127.

    Shape:
        (R, I) -> int8 (R, I), scales (R, 1).
    """
    # A row of zeros may have any scale but 0.
    scales = (x.abs().amax(dim=1, keepdim=True) / LARGEST).clamp_(min=torch.finfo(x.dtype).tiny)
    return (x / scales).round_().to(torch.int8), scales


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
    return QuantizedLinear(torch.ones(1, 4), None)(torch.ones(1, 4)).isclose(torch.tensor(4.0)).item()
