"""What the sizes of a model tell. This module imports no PyTorch."""

from collections.abc import Mapping
from typing import Any


def is_language_model(sizes: Mapping[str, Any]) -> bool:
    """Return whether a model of these sizes reads its sources from left to right, as language models do.

    Args:
        sizes: values of the model's options by name; models that are older than an option lack it.
    """
    return str(sizes.get("source_visibility")) == "causal"
