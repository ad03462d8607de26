"""The shapes of a model's parameters, without making any of them."""

from collections.abc import Mapping
from typing import Any

import torch

from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig, complete_sizes


def parameter_shapes(sizes: Mapping[str, Any], vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of a `unilm` model of these sizes.

    Raises:
        UserError: if the sizes contradict each other.
    """
    cfg = UnilmConfig()
    complete_sizes(cfg, dict(sizes))
    with torch.device("meta"):
        model = UnilmModel(cfg, vocab_size=max(1, vocab_size), pad=0)
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}
