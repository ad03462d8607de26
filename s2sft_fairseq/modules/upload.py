"""Copy numbers to a GPU without waiting for it."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


def upload(numbers: Sequence[int] | np.ndarray, device: torch.device, dtype: torch.dtype = torch.int64) -> Tensor:
    """Return integers (N,) on a device.

    Memory is pinned first: from other memory CUDA copies only after the GPU has finished all earlier work.
    """
    tensor = torch.as_tensor(numbers).to(dtype)
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)
