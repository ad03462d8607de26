"""NumPy numbers and arrays in checkpoints, rebuilt from their bytes by functions of our own.

NumPy's own unpickling trusts what it is given: a state of `numpy.dtype` with invented fields, sizes or flags makes it
take bytes for pointers. The functions here stand under NumPy's names in a checkpoint. They know a closed list of types,
compare every state with the one form that NumPy writes for them, and the number of bytes with the shape.
"""

import math
from typing import Any

import numpy as np

_KINDS = ("b1", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8")
_STATE_VERSION = 3  # of a dtype without fields: (version, byte order, base, names, fields, size, alignment, flags)
_REST_OF_STATE = (None, None, None, -1, -1, 0)
_BYTE_ORDERS = ("<", "|", "=")


class RefusedValueError(Exception):
    """A NumPy value that is no number or array of numbers; the text says why."""


class PlainDtype:
    """Stands under the name ``numpy.dtype``: one of the plain types, by its kind and size such as ``f4``."""

    def __init__(self, kind: object = None, align: object = False, copy: object = False):
        if kind not in _KINDS or align or copy not in (False, True):
            raise RefusedValueError(f"numpy.dtype {kind!r:.40} is none of {', '.join(_KINDS)}")
        self.dtype = np.dtype(f"<{kind}")

    def __setstate__(self, state: object) -> None:
        plain = isinstance(state, tuple) and len(state) == 8
        if not plain or state[0] != _STATE_VERSION or state[1] not in _BYTE_ORDERS or state[2:] != _REST_OF_STATE:
            raise RefusedValueError("numpy.dtype has a state that no number has")

    def __reduce__(self) -> tuple[Any, ...]:
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
        super().__setstate__((1, shape, dtype.dtype, bool(is_fortran), data))
        self.filled = True

    def __reduce__(self) -> tuple[Any, ...]:
        """Be saved as the ordinary array that it is."""
        return np.asarray(self).__reduce__()


def reconstruct(kind: object, shape: object, typecode: object) -> PlainArray:
    """Stand under the name ``numpy.core.multiarray._reconstruct``, which is always called for an empty array."""
    if kind is not PlainArray or shape != (0,) or typecode not in (b"b", "b"):
        raise RefusedValueError("numpy.core.multiarray._reconstruct is called for something else than an empty array")
    return PlainArray()


def scalar(dtype: object, data: object) -> np.generic:
    """Stand under the name ``numpy.core.multiarray.scalar``: one number from its bytes."""
    data = _bytes(data)
    if len(data) != _plain(dtype).itemsize:
        raise RefusedValueError(f"a number of numpy.dtype {dtype.dtype} has {len(data)} bytes")
    return np.frombuffer(data, dtype.dtype)[0]


def numpy_types() -> list:
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
