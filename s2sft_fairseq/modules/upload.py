"""Numbers that the host brings to a GPU without waiting for it."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def upload(numbers: Sequence[int] | np.ndarray, device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return whole numbers (N,) on a device.

    From memory that is not pinned CUDA copies only when the GPU has done all that it was asked to do before.
    """
    tensor = torch.as_tensor(numbers).to(dtype)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
