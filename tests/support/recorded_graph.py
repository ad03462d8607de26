"""A stand-in for CUDA graphs: it records operators with their tensors, and runs them again on the tensors' new data.

As in a CUDA graph, a replay runs no Python: a number that Python computed during recording keeps its value, and so do
all shapes and addresses.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class RecordedGraph(TorchDispatchMode):
    """Records the operators that run within it; `replay` runs them again."""

    def __init__(self) -> None:
        super().__init__()
        self._operators: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        self._operators.append((func, args, kwargs, result))
        return result

    def replay(self) -> None:
        """Run the operators again. Each writes where it wrote before: the result of an operator that makes a new tensor
        is copied there; views and in-place results are already there.
        """
        for func, args, kwargs, result in self._operators:
            for old, new in zip(tree_leaves(result), tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(old, Tensor) and _address(old) != _address(new):
                    old.copy_(new)


def _address(tensor: Tensor) -> int:
    """Return the address of a tensor's data, on the CPU or on the pretended GPU."""
    held: Tensor = getattr(tensor, "held", tensor)
    return held.data_ptr()


def record(compute: Callable[[], object]) -> RecordedGraph:
    """Record a function; this is a `s2sft_fairseq.inference.step_graphs.Record`.

    Recording a CUDA graph computes nothing, so the result is filled with NaN until the first replay.
    """
    with RecordedGraph() as graph:
        result = compute()
    if isinstance(result, Tensor):
        result.fill_(float("nan") if result.is_floating_point() else torch.iinfo(result.dtype).max)
    return graph
