"""Load checkpoints without running code from them.

Since PyTorch 2.6 `torch.load` builds plain values and tensors only, and refuses every other type by name. fairseq's own
checkpoints hold a few types beyond these, all of them plain records; they are registered here, and nothing else is.
What a configuration in a checkpoint may ask for is decided in `trusted_config`.

NumPy numbers and arrays are rebuilt from their bytes by functions of our own. NumPy's own unpickling trusts what it is
given: a state of `numpy.dtype` with invented fields, sizes or flags makes it take bytes for pointers. The functions
here stand under NumPy's names in a checkpoint. They know a closed list of types, compare every state with the one form
that NumPy writes for them, and the number of bytes with the shape.
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

_KINDS = ("b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
_STATE_VERSION = 3  # of a dtype without fields: (version, byte order, base, names, fields, size, alignment, flags)
_REST_OF_STATE = (None, None, None, -1, -1, 0)
_BYTE_ORDERS = ("<", "|", "=")
_METERS = (meters.AverageMeter, meters.TimeMeter, meters.StopwatchMeter)


class RefusedValueError(Exception):
    """A NumPy value that is no number or array of numbers; the text says why."""


class PlainDtype:
    """Stands under the name ``numpy.dtype``: one of the plain types, by its kind and size such as ``f4``."""

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
    """Stands under the name ``numpy.ndarray``: empty, until a state that has been checked fills it, once."""

    def __new__(cls) -> "PlainArray":
        """Return an array of no elements; a checkpoint cannot ask for another shape here."""
        return super().__new__(cls, 0, np.uint8)

    def __setstate__(self, state: object) -> None:
        """Take ``(version, shape, dtype, Fortran order, bytes)``."""
        if "filled" in vars(self):  # its memory may have been lent already
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
        # NumPy's types ask for its own booleans.
        super().__setstate__((1, shape, dtype.dtype, bool(is_fortran), data))  # type: ignore[arg-type]
        self.filled = True

    def __reduce__(self) -> str | tuple[Any, ...]:
        """Be saved as the ordinary array that it is."""
        return np.asarray(self).__reduce__()


def reconstruct(kind: object, shape: object, typecode: object) -> PlainArray:
    """Stand under the name ``numpy.core.multiarray._reconstruct``, which is always called for an empty array."""
    if kind is not PlainArray or shape != (0,) or typecode not in (b"b", "b"):
        raise RefusedValueError("numpy.core.multiarray._reconstruct is called for something else than an empty array")
    return PlainArray()


def scalar(dtype: object, data: object) -> np.generic:
    """Stand under the name ``numpy.core.multiarray.scalar``: one number from its bytes."""
    data, kind = _bytes(data), _plain(dtype)
    if len(data) != kind.itemsize:
        raise RefusedValueError(f"a number of numpy.dtype {kind} has {len(data)} bytes")
    return np.frombuffer(data, kind)[0]


def numpy_types() -> list[Any]:
    """What `torch.serialization.add_safe_globals` needs: each function with the names that it stands under."""
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
    """Return bytes, which Python 2 wrote as text."""
    if isinstance(data, str):
        return data.encode("latin1")
    if not isinstance(data, bytes):
        raise RefusedValueError(f"a numpy value needs bytes, but has {type(data).__name__}")
    return data


def safe_types() -> list[Any]:
    """The types that fairseq checkpoints hold beyond PyTorch's own list: classes, or (class, its name in the file)."""
    return [
        argparse.Namespace,  # cfg["model"], and the whole configuration before fairseq 0.10
        *numpy_types(),  # meters and scores
        # Meters as objects, before fairseq 0.9; the module has moved since.
        *_METERS,
        *((meter, f"fairseq.meters.{meter.__name__}") for meter in _METERS),
    ]


def types_between_ranks() -> list[Any]:
    """The further types in the state that rank 0 sends to the other ranks on resuming; no file holds them."""
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
    """Let `torch.load` build `safe_types()`, in this process, wherever it is called from."""
    add_safe_globals(safe_types())


def load_checkpoint(path: str | os.PathLike[str], *, lazily: bool = False) -> dict[str, Any]:
    """Load a checkpoint onto the CPU, as it is in the file.

    Args:
        path: the file, or a model folder.
        lazily: read tensors when they are used, where the format of the file allows it; the file must not change then.

    Raises:
        UserError: the file is missing, is damaged, is no checkpoint, or holds a type that is not safe to load.
    """
    path = os.fspath(checkpoint_file(path))
    if not os.path.exists(path):
        raise UserError(f"{path}: no such checkpoint file")
    if not os.path.isfile(path):
        what = what_it_is(Path(path)) if os.path.isdir(path) else "a device"
        raise UserError(f"{path}: a checkpoint file or a model folder is needed, but this is {what}")
    if path.endswith(".safetensors") or (Path(path).name in ENGINES.values() and engine_of(Path(path).parent)):
        return read_model(Path(path))
    try:
        check_archive(path)
        check_checkpoint(Path(path))
        mmap = lazily and zipfile.is_zipfile(path)  # the format before PyTorch 1.6 is no archive
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except (MemoryError, UserError):
        raise
    except RefusedValueError as error:
        raise UserError(_refusal(path, [f"a NumPy value that is no number ({error})"])) from error
    except Exception as error:  # a damaged pickle or archive fails in any way whatever, from KeyError to OSError
        refused = _refused_types(path, error)
        raise UserError(_refusal(path, refused) if refused else _unreadable(path, error)) from error
    if not isinstance(state, dict):
        raise UserError(f"{path}: a checkpoint holds a dictionary, this file holds a {type(state).__name__}")
    check_state(path, state)
    return state


def load_options(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Load what a checkpoint says of its model, as far as a folder for an engine goes: without the weights of such.

    Raises:
        UserError: as `load_checkpoint`.
    """
    if engine_of(path):
        return as_checkpoint(read_config(Path(path)), {})
    return load_checkpoint(path, lazily=True)


def load_pickle(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Load a bare pickle of NumPy arrays by name, such as Paddle's ``*.pdparams``, in PyTorch's safe mode; as tensors.

    Raises:
        UserError: the file is damaged, holds a type that is not safe to load, or is of a newer protocol than PyTorch's
            safe mode reads.
    """
    path = os.fspath(path)
    try:
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a newer protocol is an error here
            state = _weights_only_unpickler.load(file, encoding="latin1")  # arrays that Python 2 wrote are such text
        # "StructuredToParameterName@@" is a table of names
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
    """The full names of the types in the file that safe loading does not allow, as far as they can be found."""
    try:
        names = get_unsafe_globals_in_checkpoint(path)
    except Exception:  # not the zip format of PyTorch >= 1.6, or too damaged to be listed
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
