"""A fingerprint of how a processor rounds: recordings are equal to the last bit only if it is the same."""

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional


def fingerprint() -> str:
    """Return a checksum of sums, products and functions as this processor computes them with one thread.

    The sizes are those of tiny models. The results of numeric libraries depend on their versions, on the processor, and
    on settings such as ``ATEN_CPU_CAPABILITY``, ``MKL_ENABLE_INSTRUCTIONS`` and ``MKL_CBWR``. The instruction sets that
    PyTorch detects count too: they decide how it multiplies in 8 and 16 bits.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        arrays = [value.detach().float().numpy().tobytes() for value in _results()]
    finally:
        torch.set_num_threads(threads)
    questions = sorted(name for name in dir(torch.cpu) if name.endswith("_supported"))
    instructions = [f"{name} {getattr(torch.cpu, name)()}" for name in questions]
    return hashlib.sha256("\n".join(instructions).encode() + b"".join(arrays)).hexdigest()[:16]


def _results() -> Iterator[Tensor]:
    draw = torch.Generator().manual_seed(0)
    for rows, width, columns in ((1, 32, 96), (5, 16, 50), (67, 32, 64), (150, 64, 32), (333, 32, 41)):
        states, weight = torch.randn(rows, width, generator=draw), torch.randn(columns, width, generator=draw)
        yield from (states, torch.empty_like(states).uniform_(generator=draw))
        states.requires_grad_(), weight.requires_grad_()
        product = functional.linear(states, weight, torch.ones(columns))
        normed = functional.layer_norm(product, (columns,))
        attended = functional.scaled_dot_product_attention(normed[None], normed[None], normed[None])
        loss = functional.cross_entropy(functional.gelu(attended[0]), torch.arange(rows) % columns)
        loss.backward()
        yield from (product, normed, attended, loss, states.grad, weight.grad)
        yield from (product.softmax(1), product.log_softmax(1), product.exp(), product.tanh(), product.sum(0))
        yield from (product.sum(1), product.norm(), product.bfloat16() @ weight.bfloat16())
        yield weight.grad.square().sqrt().add(1e-6).reciprocal()
        if torch.backends.mkldnn.is_available():
            packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), 40)
            yield torch.ops.mkldnn._linear_pointwise(states.detach(), packed, None, "gelu", [], "none")
