"""Numbers that the host brings to a GPU without waiting for it."""

from collections.abc import Sequence

import torch
from torch import Tensor


def upload(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Return whole numbers (N,) as int64 on a device.

    From memory that is not pinned CUDA copies only when the GPU has done all that it was asked to do before.
    """
    tensor = torch.tensor(numbers, dtype=torch.int64)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
