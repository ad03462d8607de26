"""Checks of the contents of a checkpoint file, beyond the types that `safe_loading` allows.

They refuse archives and tensors that take more memory than their file, and names and parts that later code would fail
on.
"""

import os
import zipfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.errors import UserError, shown

_WEIGHTS = ("model", "weights", "state_dict")  # the keys for tensors by name in fairseq, DeltaLM and other programs
_KINDS = {"args": Namespace, "cfg": dict, "model": dict, "task_state": dict, "extra_state": dict}
_SHOWN = 5


def check_archive(path: str) -> None:
    """Check that an archive does not unpack to more bytes than the file has: PyTorch never compresses its members.

    Raises:
        UserError: if it does, naming the largest member.
    """
    if not zipfile.is_zipfile(path):
        return  # before PyTorch 1.6 files were not zip archives
    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
    size = os.path.getsize(path)
    if sum(member.file_size for member in members) > size:
        largest = max(members, key=lambda member: member.file_size)
        raise UserError(
            f"{path}: refused, as its {size:,} bytes unpack to more, unlike files that PyTorch saves: "
            f"{shown(largest.filename)} to {largest.file_size:,} bytes"
        )


def check_state(path: str, state: Mapping[Any, Any]) -> None:
    """Check the names, parts and tensors of a checkpoint.

    Raises:
        UserError: naming the file and the first errors, each with what is needed and what is found.
    """
    problems = [
        f"{path}: {name} must be a {kind.__name__}, but is a {type(state[name]).__name__}"
        for name, kind in _KINDS.items()
        if "model" in state
        and ("cfg" in state or "args" in state)  # a checkpoint of fairseq
        and state.get(name) is not None
        and not isinstance(state[name], kind)
    ]
    tables = [state, *(state[name] for name in _WEIGHTS if isinstance(state.get(name), dict))]
    problems += [
        f"{path}: names must be plain text, but one is {shown(name)}"
        for table in tables
        for name in table
        if not isinstance(name, str) or not name.isprintable()
    ]
    problems += [
        f"{path}: {where} must be an ordinary tensor, but {what}"
        for where, value in _tensors(state)
        if (what := _strange(value))
    ]
    if problems:
        more = [f"and {len(problems) - _SHOWN:,} more"] if len(problems) > _SHOWN else []
        raise UserError.of([*problems[:_SHOWN], *more])


def _tensors(state: Mapping[Any, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors with their places; containers that occur several times, or in themselves, are visited once."""
    waiting: list[tuple[str, Any]] = [("", state)]
    seen: set[int] = set()
    while waiting:
        where, value = waiting.pop()
        if isinstance(value, Tensor):
            yield where.removeprefix("."), value
        elif isinstance(value, dict | list | tuple) and id(value) not in seen:
            seen.add(id(value))
            items = value.items() if isinstance(value, dict) else enumerate(value)
            waiting += [(f"{where}.{key if isinstance(key, str) else shown(key)}"[:120], inner) for key, inner in items]


def _strange(value: Tensor) -> str | None:
    """Return what makes a tensor unusable as weights: its layout, device, quantization, or too small a storage."""
    if value.layout != torch.strided:
        return f"has the layout {value.layout}"
    if value.device.type != "cpu" or value.is_quantized:
        return "is quantized" if value.is_quantized else f"is on the device {value.device.type}"
    stored = value.untyped_storage().nbytes() // value.element_size()
    return f"its shape is {tuple(value.shape)}, of only {stored:,} elements" if value.numel() > stored else None
