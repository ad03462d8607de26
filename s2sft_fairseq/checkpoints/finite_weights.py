"""Weights that are no numbers: a model that has them writes empty lines, and nothing else tells why."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.errors import UserError

HALF_LIMIT = f"float16 ends at {torch.finfo(torch.float16).max:,.0f}"
_SHOWN = 5


def check_finite(path: str | os.PathLike[str], weights: Mapping[str, Any]) -> None:
    """Look for NaN and infinite numbers; one pass over the weights, without memory of its own.

    Args:
        path: of the file, for the message.
        weights: by name; what is no tensor of floating-point numbers is left to others.

    Raises:
        UserError: naming the file and the first of the tensors.
    """
    tensors = {name: value for name, value in weights.items() if isinstance(value, Tensor)}
    if bad := not_finite(tensors.items()):
        half = f" ({HALF_LIMIT})" if any(tensors[name].dtype == torch.float16 for name in bad) else ""
        raise UserError(
            f"{path}: weights must be finite, but {_told(bad)} in {len(bad)} of its {len(tensors)} tensors{half}. What "
            "wrote the file went wrong: give an earlier checkpoint, or copy it again"
        )


def check_half_precision(model: torch.nn.Module) -> None:
    """Look for weights that overflowed when the model was made float16; nothing is done for other data types.

    Raises:
        UserError: naming the first of the parameters.
    """
    if bad := not_finite((name, value) for name, value in model.named_parameters() if value.dtype == torch.float16):
        raise UserError(f"--fp16 cannot be used: {HALF_LIMIT}, and {_told(bad)}; give --bf16 instead, or leave it out")


def not_finite(weights: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    """Return ``NaN`` or ``infinite`` by the names of the weights that are not finite."""
    bad = {}
    for name, value in weights:
        if value.is_floating_point() and value.layout == torch.strided and value.device.type != "meta":
            least, most = _extremes(value.detach())
            if not (least.isfinite() and most.isfinite()):
                bad[name] = "NaN" if least.isnan() else "infinite"
    return bad


def _extremes(value: Tensor) -> tuple[Tensor, Tensor]:
    """Return the smallest and the largest element; both are NaN where one is."""
    if value.numel() == 0:
        return torch.zeros(()), torch.zeros(())
    stored = value.untyped_storage().nbytes() // value.element_size()
    if value.numel() > stored:  # elements that are the same memory: there may be more than fit into any
        value = value.as_strided((stored,), (1,), 0)
    if value.element_size() == 1:  # no arithmetic in 8 bits
        value = value.float()
    return torch.aminmax(value)


def _told(bad: Mapping[str, str]) -> str:
    more = ", ..." if len(bad) > _SHOWN else ""
    return ", ".join(f"{name} is {what}" for name, what in list(bad.items())[:_SHOWN]) + more
