"""Matrix products and linear layers for training on CPUs, with the fastest kernels that PyTorch has for the machine.

PyTorch multiplies float32 matrices with MKL if it has MKL. On some processors, such as AMD's with AVX-512, the kernels
of oneDNN take half of the time; on others, or for other layouts and sizes, they are slower. So the kernels are timed
once on a machine for each kind of product, and the result is cached in a file.

Under ``torch.autocast("cpu", torch.bfloat16)``, which ``--amp`` enables, the factors are rounded to bfloat16.

A product is a (M, K) times b (K, N). The three products of a linear layer have different layouts. R: rows, I: inputs,
O: outputs.

* the result: x (R, I) times the transposed weight (O, I)
* the gradient of x: the gradient of the result (R, O) times the weight (O, I)
* the gradient of the weight: the transposed gradient of the result (R, O) times x (R, I)
"""

import functools
import json
import logging
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from s2sft_fairseq.files import DiskError, write_whole

logger = logging.getLogger(__name__)

MATMULS = ("auto", "mkl", "onednn")
"""Values of ``--matmul``."""
LEAST = 1 << 23
"""Multiplications of the smallest product for which a kernel is chosen: smaller products take less than 0.1 ms."""
FEW_ROWS, MANY_OUTPUTS = 128, 8192
MARGIN = 1.03
"""A kernel replaces MKL only if it is this many times as fast, because measured times vary."""
TRIALS = 5

_settings = {"matmul": "auto"}


def _mkl(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)


def _onednn(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    # The kernel multiplies with the transpose of its second factor.
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b.t(), bias, "none", [], "")
    return product


def _onednn_copied(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    return _onednn(a.contiguous(), b.t().contiguous().t(), bias)


KERNELS: dict[str, Callable[..., Tensor]] = {
    "mkl": _mkl,
    "onednn": _onednn,
    "onednn_copied": _onednn_copied,  # copies the factors to contiguous layouts first
}
# Rows, inputs and outputs of the linear layer that is timed for each kind.
_TRIED = {"few rows": (64, 768, 768), "layer": (1024, 768, 768), "vocabulary": (128, 384, 16384)}


class Linear(nn.Linear):
    """PyTorch's linear layer, with the fastest kernels on CPUs."""

    def forward(self, x: Tensor) -> Tensor:
        """Multiply, (..., I) -> (..., O)."""
        return linear(x, self.weight, self.bias)


def speed_up(model: nn.Module) -> None:
    """Convert every linear layer of PyTorch within a model to a `Linear`, in place; the parameters do not change."""
    for module in model.modules():
        if type(module) is nn.Linear:
            module.__class__ = Linear


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply with a weight and add a bias.

    Under autocast to bfloat16 the factors of the product and of its gradients are rounded, and so are these products;
    sums, bias and result stay in float32. The tensors saved for the backward pass are then half as large.

    Shape:
        x (..., I), weight (O, I), bias (O,) -> (..., O).
    """
    if x.device.type != "cpu" or x.dtype != torch.float32 or torch.compiler.is_compiling():
        return nn.functional.linear(x, weight, bias)
    dtype = operand_type(x)
    if dtype == x.dtype and x.numel() * len(weight) < LEAST:
        return nn.functional.linear(x, weight, bias)
    # (..., I) -> (R, I)
    product: Tensor = _Linear.apply(x.reshape(-1, x.size(-1)), weight, bias, dtype)
    return product.view(*x.shape[:-1], len(weight))


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        x, weight = x.to(dtype), weight.to(dtype)
        ctx.save_for_backward(x, weight)
        return multiply(x, weight.t(), bias).float()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        gradient = gradient.contiguous()
        bias_gradient = gradient.sum(dim=0) if needs_bias else None
        gradient = gradient.to(x.dtype)
        x_gradient = multiply(gradient, weight).float() if needs_x else None
        weight_gradient = multiply(gradient.t(), x).float() if needs_weight else None
        return x_gradient, weight_gradient, bias_gradient, None


def use_matmul(name: str) -> None:
    """Choose the kernels that multiply float32 matrices from now on in this process.

    Args:
        name: ``auto``: for each kind of product the fastest kernel on this machine; ``mkl``: PyTorch's default;
            ``onednn``.

    Raises:
        ValueError: for any other name.
    """
    if name not in MATMULS:
        raise ValueError(f"matmul must be one of {', '.join(MATMULS)}, but is {name}")
    _settings["matmul"] = name


def multiply(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply two matrices and add a bias.

    Shape:
        a (M, K), b (K, N), bias (N,) -> (M, N), in the data type of the matrices, or of the bias if that is wider.
    """
    if bias is not None and bias.dtype != a.dtype:
        return torch.mm(a, b) + bias
    if a.device.type != "cpu" or a.dtype != torch.float32 or len(a) * b.numel() < LEAST:
        return _mkl(a, b, bias)
    return KERNELS[_kernel(a, b)](a, b, bias)


def operand_type(x: Tensor) -> torch.dtype:
    """Return the data type in which a tensor is multiplied: that of autocast if it is enabled, else its own."""
    return autocast_type(x.dtype, x.device)


def autocast_type(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the data type in which tensors of a type are multiplied on a device."""
    if device.type in ("cpu", "cuda") and dtype == torch.float32 and torch.is_autocast_enabled(device.type):
        return torch.get_autocast_dtype(device.type)
    return dtype


def _kernel(a: Tensor, b: Tensor) -> str:
    layout = _layout(a) + _layout(b)
    if "strided" in layout or _settings["matmul"] == "mkl" or not _has_onednn():
        return "mkl"  # oneDNN is a thousand times slower if a factor has gaps
    if _settings["matmul"] == "onednn":
        return "onednn"
    return fastest_kernels(torch.get_num_threads()).get(f"{layout} {_kind(layout, a, b)}", "mkl")


def _layout(x: Tensor) -> str:
    """Return ``n`` for contiguous rows, ``t`` for contiguous columns, else ``strided``."""
    if x.is_contiguous():
        return "n"
    return "t" if x.t().is_contiguous() else "strided"


def _kind(layout: str, a: Tensor, b: Tensor) -> str:
    rows, inner = a.shape
    outputs = inner if layout == "nn" else b.size(1)
    if layout == "tn":
        outputs, rows = rows, inner
    if outputs >= MANY_OUTPUTS:
        return "vocabulary"
    return "few rows" if rows <= FEW_ROWS else "layer"


@functools.cache
def _has_onednn() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@functools.cache
def fastest_kernels(threads: int) -> dict[str, str]:
    """Return the fastest kernel for each layout and kind of product, from the cache file or else by timing them."""
    path, key = cache_path(), machine(threads)
    known = _read(path)
    if key in known:
        return known[key]
    start = time.perf_counter()
    rates = {name: _rates(*shape) for name, shape in _TRIED.items()}
    found = {
        f"{layout} {name}": _best(of_layout) for name, layouts in rates.items() for layout, of_layout in layouts.items()
    }
    took, chosen = time.perf_counter() - start, ", ".join(f"{name}: {kernel}" for name, kernel in found.items())
    logger.info(f"fastest matrix products on {threads} threads, measured in {took:.1f} s: {chosen}")
    try:
        write_whole(path, lambda file: file.write_text(json.dumps({**known, key: found}, indent=1), encoding="utf-8"))
    except (OSError, DiskError) as error:
        logger.info(f"{path} cannot be written, so the next process measures again: {error}")
    return found


def cache_path() -> Path:
    """Return the path of the file that caches the fastest kernels, in the user's cache folder."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "s2sft_fairseq" / "matmul.json"


def machine(threads: int) -> str:
    """Return a key of everything that the speed of kernels depends on: processor, threads, version and settings."""
    limits = [os.environ.get(name, "") for name in ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS")]
    return " | ".join([processor()[0], f"{threads} threads", torch.__version__, *filter(None, limits)])


def processor() -> tuple[str, frozenset[str]]:
    """Return the name of the processor with its family, model and stepping, and its flags, where Linux tells them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n\n")[0].splitlines()
    except OSError:
        return platform.machine(), frozenset()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    name = " ".join(facts[name] for name in ("model name", "cpu family", "model", "stepping") if name in facts)
    return name, frozenset(facts.get("flags", "").split())


def _read(path: Path) -> dict[str, dict[str, str]]:
    """Return the entries of the cache file, without those that name unknown kernels."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return {key: found for key, found in content.items() if set(found.values()) <= set(KERNELS)}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _rates(rows: int, inputs: int, outputs: int) -> dict[str, dict[str, float]]:
    """Return the seconds of each kernel for the three products of a linear layer."""
    x, weight, gradient = torch.ones(rows, inputs), torch.ones(outputs, inputs), torch.ones(rows, outputs)
    factors = {"nt": (x, weight.t()), "nn": (gradient, weight), "tn": (gradient.t(), x)}
    return {
        layout: {
            name: _seconds(kernel, a, b)
            for name, kernel in KERNELS.items()
            if layout != "nt" or name != "onednn_copied"  # in this layout nothing needs a copy
        }
        for layout, (a, b) in factors.items()
    }


def _seconds(kernel: Callable[..., Tensor], a: Tensor, b: Tensor) -> float:
    """Return the shortest time of several calls, after a first call that also plans."""
    kernel(a, b)
    times = []
    for _ in range(TRIALS):
        start = time.perf_counter()
        kernel(a, b)
        times.append(time.perf_counter() - start)
    return min(times)


def _best(seconds: dict[str, float]) -> str:
    fastest = min(seconds, key=seconds.__getitem__)
    return fastest if seconds[fastest] * MARGIN < seconds["mkl"] else "mkl"
