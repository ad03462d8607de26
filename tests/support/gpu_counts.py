"""Counts of what a GPU would be asked to do, operator by operator: launches, host waits, uploads, moved slices.

This is a model of CUDA. An operator that computes counts as one launch, though some run several kernels there; a view
or an allocation counts as none. An operator on a list of tensors (``_foreach_copy_``, ``_fused_adamw_``) is one launch
too; CUDA needs one per 320 chunks of 65,536 elements, and per 30 to 110 tensors. The time of a launch is not known. The
host also waits for an upload from memory that is not pinned.
"""

import functools
import inspect
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import s2sft_fairseq

PACKAGE, SUPPORT = (f"{Path(file).parent}/" for file in (s2sft_fairseq.__file__, __file__))

INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
# Operators after which the host waits, because it needs a number from the GPU or the size of the result.
WAITS = {"_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "unique_dim", "bincount"}
ALLOCATES = ("empty", "new_empty", "_unsafe_view")
WRITES = {"copy_", "fill_", "zero_", "add_"}
SLICED = {"slice_backward", "select_backward"}


@dataclass
class Counts:
    """The operations that the GPU was asked for."""

    launches: Counter[str] = field(default_factory=Counter)
    """Kernels, by the name of the operator."""
    synchronisations: Counter[str] = field(default_factory=Counter)
    """How often the host had to wait, by ``file:line operator`` of the line in the package that caused it."""
    uploads: Counter[str] = field(default_factory=Counter)
    """Copies from the host, by ``file:line operator`` too."""
    slice_bytes: int = 0
    """Bytes written only to move slices: what ``copy_``, ``fill_``, ``zero_`` and ``add_`` write into a part of a
    tensor; the zeros and the copy that make the gradient of a slice as large as the whole; and, in a backward pass,
    sums of two gradients of one shape."""

    def wait(self, name: str) -> None:
        """Count a synchronization by the operator ``name``."""
        self.synchronisations[origin(name)] += 1

    def upload(self, name: str) -> None:
        """Count a copy from the host by the operator ``name``."""
        self.uploads[origin(name)] += 1

    def operator(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Count an operator that has run.

        Args:
            func: the operator, an ``OpOverload``.
            args: its arguments, with plain data in place of the GPU's tensors.
            kwargs: its keyword arguments, in the same form.
            result: its result.
        """
        name = func.overloadpacket.__name__
        if waits(name, args, kwargs):
            self.wait(name)
        if name in SLICED:
            self.launches.update(("zeros of a slice", "copy of a slice"))
            self.slice_bytes += result.nbytes + args[0].nbytes
        elif name != "_local_scalar_dense" and not name.startswith(ALLOCATES) and not is_view(func):
            self.launches[name] += 1
            if (name in WRITES and args[0].nbytes < args[0].untyped_storage().nbytes()) or is_sum(name, args):
                self.slice_bytes += args[0].nbytes


@functools.cache
def is_view(func: Any) -> bool:
    """Return whether an operator returns views of its arguments."""
    aliases = [result.alias_info for result in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def leaves(value: Any) -> list[Any]:
    """Return the values in an argument of an operator, which is a value or nested lists of values."""
    return [leaf for one in value for leaf in leaves(one)] if isinstance(value, list | tuple) else [value]


def is_sum(name: str, args: Any) -> bool:
    """Return whether this is the sum of two gradients of one tensor, as backward passes make it."""
    if name != "add" or torch._C._current_graph_task_id() == -1:
        return False
    return all(isinstance(summand, Tensor) and summand.shape == args[0].shape for summand in args[:2])


def waits(name: str, args: Any, kwargs: Any) -> bool:
    """Return whether the host waits for an operator."""
    if name in INDEXING:  # PyTorch first finds the nonzero places of a mask
        return any(isinstance(index, Tensor) and index.dtype == torch.bool for index in leaves(args[1]))
    if name == "repeat_interleave":
        return kwargs.get("output_size") is None
    return name in WAITS


def origin(name: str) -> str:
    """Return ``file:line name`` of the innermost call in the package, or else outside of PyTorch and this folder."""
    frame, outside = inspect.currentframe(), name
    while frame is not None:
        path, line = frame.f_code.co_filename, frame.f_lineno
        if path.startswith(PACKAGE):
            return f"{path.removeprefix(PACKAGE)}:{line} {name}"
        if outside == name and "/torch/" not in path and not path.startswith(SUPPORT):
            outside = f"{Path(path).name}:{line} {name}"
        frame = frame.f_back
    return outside
