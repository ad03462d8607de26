"""Load checkpoints without running code from them.

Since PyTorch 2.6 `torch.load` builds only plain values and tensors, and refuses all other types. fairseq's checkpoints
hold a few further types, all of them plain records; this module registers those and nothing else. `trusted_config`
checks the configuration in a checkpoint.

Functions of this module rebuild NumPy numbers and arrays from their bytes. NumPy's own unpickling trusts its input: a
state of `numpy.dtype` with invented fields, sizes or flags makes it take bytes for pointers. The replacements are
registered under NumPy's names. They accept a closed list of types, compare each state with the one form that NumPy
writes for them, and compare the number of bytes with the shape.
"""

import argparse
import collections
import math
import os
import re
import typing
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import meters
from omegaconf import DictConfig, ListConfig
from omegaconf.base import ContainerMetadata, Metadata
from omegaconf.nodes import AnyNode
from torch import _weights_only_unpickler
from torch.serialization import add_safe_globals, get_unsafe_globals_in_checkpoint

from s2sft_fairseq.checkpoints.model_folder import (
    ENGINES,
    as_checkpoint,
    checkpoint_file,
    engine_of,
    read_config,
    read_model,
    what_it_is,
)
from s2sft_fairseq.checkpoints.state_checks import check_archive, check_state
from s2sft_fairseq.checksums import check_checkpoint
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.received import regular_file

_KINDS = ("b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
# State of a dtype without fields: (version, byte order, base, names, fields, size, alignment, flags).
_STATE_VERSION = 3
_REST_OF_STATE = (None, None, None, -1, -1, 0)
_BYTE_ORDERS = ("<", "|", "=")
_METERS = (meters.AverageMeter, meters.TimeMeter, meters.StopwatchMeter)


class RefusedValueError(Exception):
    """Raised for a NumPy value that is not a number or an array of numbers; the text gives the reason."""


class PlainDtype:
    """Replacement of ``numpy.dtype``: one of the plain types, named by its kind and size, such as ``f4``."""

    def __init__(self, kind: object = None, align: object = False, copy: object = False):
        if kind not in _KINDS or align or copy not in (False, True):
            raise RefusedValueError(f"numpy.dtype {kind!r:.40} is none of {', '.join(_KINDS)}")
        self.dtype = np.dtype(f"<{kind}")

    def __setstate__(self, state: object) -> None:
        if (
            not (isinstance(state, tuple) and len(state) == 8)
            or state[0] != _STATE_VERSION
            or state[1] not in _BYTE_ORDERS
            or state[2:] != _REST_OF_STATE
        ):
            raise RefusedValueError("numpy.dtype has a state that no number has")

    def __reduce__(self) -> str | tuple[Any, ...]:
        return self.dtype.__reduce__()


class PlainArray(np.ndarray):
    """Replacement of ``numpy.ndarray``: an empty array that one checked state fills."""

    def __new__(cls) -> "PlainArray":
        """Return an empty array; a checkpoint cannot ask for another shape here."""
        return super().__new__(cls, 0, np.uint8)

    def __setstate__(self, state: object) -> None:
        """Check and set the state ``(version, shape, dtype, Fortran order, bytes)``."""
        if "filled" in vars(self):  # a tensor may already use its memory
            raise RefusedValueError("a numpy.ndarray with two states")
        if not isinstance(state, tuple) or len(state) != 5 or state[0] != 1:
            raise RefusedValueError("numpy.ndarray has a state that no array of numbers has")
        _, shape, dtype, is_fortran, data = state
        if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
            raise RefusedValueError(f"numpy.ndarray has the shape {shape!r:.40}")
        data = _bytes(data)
        expected = math.prod(shape) * _plain(dtype).itemsize
        if len(data) != expected:
            raise RefusedValueError(f"numpy.ndarray of shape {shape} needs {expected} bytes, but has {len(data)}")
        # NumPy's type stubs declare the flag as numpy.bool.
        super().__setstate__((1, shape, dtype.dtype, bool(is_fortran), data))  # type: ignore[arg-type]
        self.filled = True

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Pickle as an ordinary array."""
        return np.asarray(self).__reduce__()


def reconstruct(kind: object, shape: object, typecode: object) -> PlainArray:
    """Replacement of ``numpy.core.multiarray._reconstruct``, which pickles always call for an empty array."""
    if kind is not PlainArray or shape != (0,) or typecode not in (b"b", "b"):
        raise RefusedValueError("numpy.core.multiarray._reconstruct is called for something else than an empty array")
    return PlainArray()


def scalar(dtype: object, data: object) -> np.generic:
    """Replacement of ``numpy.core.multiarray.scalar``: return a number from its bytes."""
    data, kind = _bytes(data), _plain(dtype)
    if len(data) != kind.itemsize:
        raise RefusedValueError(f"a number of numpy.dtype {kind} has {len(data)} bytes")
    return np.frombuffer(data, kind)[0]


def numpy_types() -> list[Any]:
    """Return the replacements with the names that they replace, for `torch.serialization.add_safe_globals`."""
    return [
        (PlainArray, "numpy.ndarray"),
        (PlainDtype, "numpy.dtype"),
        # numpy 2 moved numpy.core to numpy._core
        *((reconstruct, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
        *((scalar, f"numpy.{core}.multiarray.scalar") for core in ("core", "_core")),
    ]


def _plain(dtype: object) -> np.dtype:
    if not isinstance(dtype, PlainDtype):
        raise RefusedValueError(f"numpy.dtype must be one of {', '.join(_KINDS)}")
    return dtype.dtype


def _bytes(data: object) -> bytes:
    """Return bytes; those that Python 2 pickled are read as text."""
    if isinstance(data, str):
        return data.encode("latin1")
    if not isinstance(data, bytes):
        raise RefusedValueError(f"a numpy value needs bytes, but has {type(data).__name__}")
    return data


def safe_types() -> list[Any]:
    """Return the types in fairseq checkpoints that PyTorch does not allow: classes, or (class, name in the file)."""
    return [
        argparse.Namespace,  # cfg["model"], and the whole configuration before fairseq 0.10
        *numpy_types(),  # meters and scores
        # Meter objects, in checkpoints before fairseq 0.9; their module was fairseq.meters then.
        *_METERS,
        *((meter, f"fairseq.meters.{meter.__name__}") for meter in _METERS),
    ]


def types_between_ranks() -> list[Any]:
    """Return the further types in the state that rank 0 sends to the other ranks on resuming; no file has them."""
    return [
        distributed_utils._TensorPlaceholder,
        DictConfig,
        ListConfig,
        ContainerMetadata,
        Metadata,
        AnyNode,
        collections.defaultdict,
        (typing.Any, "typing.Any"),
        dict,
        list,
        int,
    ]


def register_safe_types() -> None:
    """Allow `torch.load` to build `safe_types()` everywhere in this process."""
    add_safe_globals(safe_types())


def load_checkpoint(path: str | os.PathLike[str], *, lazily: bool = False) -> dict[str, Any]:
    """Load a checkpoint onto the CPU, without changes.

    Args:
        path: the file, or a model folder.
        lazily: read tensors when they are used, if the format of the file allows it; the file must not change then.

    Raises:
        UserError: if the file is missing, is damaged, is not a checkpoint, or holds a type that is not safe to load.
    """
    path = os.fspath(checkpoint_file(path))
    if not os.path.exists(path):
        raise UserError(f"{path}: no such checkpoint file")
    if os.path.isdir(path):
        raise UserError(f"{path}: a checkpoint file or a model folder is needed, but this is {what_it_is(Path(path))}")
    regular_file(Path(path))
    if path.endswith(".safetensors") or (Path(path).name in ENGINES.values() and engine_of(Path(path).parent)):
        return read_model(Path(path))
    try:
        check_archive(path)
        check_checkpoint(Path(path))
        mmap = lazily and zipfile.is_zipfile(path)  # before PyTorch 1.6 files were not zip archives
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except (MemoryError, UserError):
        raise
    except RefusedValueError as error:
        raise UserError(_refusal(path, [f"a NumPy value that is no number ({error})"])) from error
    except Exception as error:  # a damaged pickle or archive may raise anything, from KeyError to OSError
        refused = _refused_types(path, error)
        raise UserError(_refusal(path, refused) if refused else _unreadable(path, error)) from error
    if not isinstance(state, dict):
        raise UserError(f"{path}: a checkpoint holds a dictionary, this file holds a {type(state).__name__}")
    check_state(path, state)
    return state


def load_options(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Load a checkpoint for its options; a folder for an engine is loaded without weights.

    Raises:
        UserError: see `load_checkpoint`.
    """
    if engine_of(path):
        return as_checkpoint(read_config(Path(path)), {})
    return load_checkpoint(path, lazily=True)


def load_pickle(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Load a bare pickle of NumPy arrays by name, such as Paddle's ``*.pdparams``, in PyTorch's safe mode.

    Returns:
        The arrays, as tensors by name.

    Raises:
        UserError: if the file is damaged, holds a type that is not safe to load, or has a newer pickle protocol than
            PyTorch's safe mode reads.
    """
    path = os.fspath(path)
    try:
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns of a newer protocol; below it is an error
            state = _weights_only_unpickler.load(file, encoding="latin1")  # the bytes of arrays that Python 2 pickled
        # Skips "StructuredToParameterName@@", a table of names.
        tensors = {name: torch.from_numpy(value) for name, value in state.items() if isinstance(value, np.ndarray)}
    except MemoryError:
        raise
    except RefusedValueError as error:
        raise UserError(_refusal(path, [f"a NumPy value that is no number ({error})"])) from error
    except Exception as error:  # as above
        if refused := re.findall(r"GLOBAL (\S+)", str(error)):
            raise UserError(_refusal(path, refused)) from error
        raise UserError(
            f"{_unreadable(path, error)} "
            "A pickle that is no PyTorch checkpoint must be of protocol 2 and hold NumPy arrays."
        ) from error
    check_state(path, tensors)
    return tensors


def _refused_types(path: str, error: Exception) -> list[str]:
    """Return the full names of the types in the file that safe loading refuses, as far as they can be found."""
    try:
        names = get_unsafe_globals_in_checkpoint(path)
    except Exception:  # not the zip format of PyTorch >= 1.6, or too damaged to list its types
        names = re.findall(r"GLOBAL (\S+)", str(error))
    return sorted(names)


def _refusal(path: str, types: list[str]) -> str:
    return (
        f"{path}: refused, it holds {', '.join(types)}. Only tensors, plain Python values and fairseq's own records "
        "are loaded, as other types can run code on being read. If the file is your own, write it again without them."
    )


def _unreadable(path: str, error: Exception) -> str:
    return (
        f"{path} ({os.path.getsize(path):,} bytes): not a PyTorch checkpoint, or a truncated or damaged one "
        f"({type(error).__name__}). Copy it again, or give an earlier checkpoint."
    )
