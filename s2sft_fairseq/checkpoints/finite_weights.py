"""Checks for NaN and infinite weights, with which a model generates empty lines without any error."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.progress import bar

HALF_LIMIT = f"float16 ends at {torch.finfo(torch.float16).max:,.0f}"
_SHOWN = 5
_QUANTIZED = frozenset(
    {
        *(torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz),
        *(torch.float8_e5m2fnuz, torch.complex64, torch.complex128),
    }
)
"""Types of numbers that mean something only with a scale or another half, which no model here has."""


def check_finite(path: str | os.PathLike[str], weights: Mapping[str, Any]) -> None:
    """Check that weights have no NaN and no infinite numbers, in one pass over them and without a copy.

    Args:
        path: the file, for the message.
        weights: the weights by name; anything but floating-point tensors is ignored.

    Raises:
        UserError: naming the file and the first tensors that are not finite, or that are quantized.
    """
    tensors = {name: value for name, value in weights.items() if isinstance(value, Tensor)}
    if quantized := {name: dtype_name(value) for name, value in tensors.items() if value.dtype in _QUANTIZED}:
        raise UserError(
            f"{path}: weights must be floating-point numbers of 16 bits or more, but {_told(quantized)} in "
            f"{len(quantized)} of its {len(tensors)} tensors: give the file that they were quantized from"
        )
    if bad := not_finite(bar(tensors.items(), f"check the weights of {os.path.basename(path)}", " tensors")):
        half = f" ({HALF_LIMIT})" if any(tensors[name].dtype == torch.float16 for name in bad) else ""
        raise UserError(
            f"{path}: weights must be finite, but {_told(bad)} in {len(bad)} of its {len(tensors)} tensors{half}. What "
            "wrote the file went wrong: give an earlier checkpoint, or copy it again"
        )


def dtype_name(value: Tensor) -> str:
    """Return the name of the type of a tensor's numbers, such as ``int8``."""
    return str(value.dtype).removeprefix("torch.")


def check_half_precision(model: torch.nn.Module) -> None:
    """Check that no weight overflowed when the model was converted to float16; other data types are not checked.

    Raises:
        UserError: naming the first parameters that did.
    """
    if bad := not_finite((name, value) for name, value in model.named_parameters() if value.dtype == torch.float16):
        raise UserError(f"--fp16 cannot be used: {HALF_LIMIT}, and {_told(bad)}; give --bf16 instead, or leave it out")


def not_finite(weights: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    """Return the names of the weights that are not finite, each with ``NaN`` or ``infinite``."""
    bad = {}
    for name, value in weights:
        if value.is_floating_point() and value.layout == torch.strided and value.device.type != "meta":
            least, most = _extremes(value.detach())
            if not (least.isfinite() and most.isfinite()):
                bad[name] = "NaN" if least.isnan() else "infinite"
    return bad


def _extremes(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest element; both are NaN if any element is."""
    if value.numel() == 0:
        return torch.zeros(()), torch.zeros(())
    stored = value.untyped_storage().nbytes() // value.element_size()
    if value.numel() > stored:  # elements share memory: look at each once, as a copy might not fit into memory
        value = value.as_strided((stored,), (1,), 0)
    if value.element_size() == 1:  # aminmax does not support 8-bit floats
        value = value.float()
    return torch.aminmax(value)


def _told(bad: Mapping[str, str]) -> str:
    more = ", ..." if len(bad) > _SHOWN else ""
    return ", ".join(f"{name} is {what}" for name, what in list(bad.items())[:_SHOWN]) + more
