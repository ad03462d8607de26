"""Options that a model settles when it is built: fairseq gives it a copy of them, and saves the original.

Without this, a checkpoint would hold neither the sizes that came from a pretrained encoder, nor that its folder is no
longer needed.
"""

import functools
from collections.abc import Callable
from typing import Any

from fairseq import models


def _keep_settled(build: Callable) -> Callable:
    @functools.wraps(build)
    def build_model(cfg: Any, task: Any, from_checkpoint: bool = False) -> Any:
        model = build(cfg, task, from_checkpoint)
        if not from_checkpoint:
            for name, value in getattr(model, "settled_options", {}).items():
                setattr(cfg, name, value)
        return model

    return build_model


def apply() -> None:
    """Write a model's ``settled_options``, where it has any, into the options that checkpoints keep."""
    models.build_model = _keep_settled(models.build_model)
