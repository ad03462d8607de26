"""Read GGUF, the format of llama.cpp: metadata, and tensors that are mostly quantized.

The layout is that of versions 2 and 3 of the specification (in the repository of ggml): a header, the metadata as keys
with typed values, a table of the tensors, and their aligned data. This module reads the header itself, with limits:
files come from others, and the reader of the package ``gguf`` takes half a minute for a header that takes a second
here. That package only dequantizes.
"""

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from s2sft_fairseq.checksums import check_files
from s2sft_fairseq.data.bounded_files import LARGEST_FILE
from s2sft_fairseq.errors import UserError, shown
from s2sft_fairseq.received import regular_file

SUFFIX = ".gguf"
_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_MOST_KEYS, _MOST_TENSORS, _MOST_DIMENSIONS = 10_000, 100_000, 4
_MOST_ITEMS = 10_000_000
"""Items of an array; the merges of the largest vocabularies are a tenth of it."""
_LONGEST_TEXT = 2**20
_MOST_ALIGNMENT = 2**16
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _ARRAY, _FLOAT = 8, 9, 6
_PLAIN = {0: (torch.float32, 4), 1: (torch.float16, 2), 30: (torch.bfloat16, 2)}
"""Types of tensors that are not quantized, with the bytes of a number."""
_AT_ONCE = 2**22  # numbers that are dequantized together: the package needs several times their memory


@dataclass(frozen=True)
class GgufTensor:
    """The place and the form of a tensor."""

    name: str
    shape: tuple[int, ...]
    """As in PyTorch: the last dimension is contiguous."""
    kind: int
    """The type in the format's numbering, such as 3 for Q4_1."""
    start: int
    """The first byte in the file."""
    block: int
    """Numbers of a block of this type, and its bytes."""
    block_bytes: int

    @property
    def bytes(self) -> int:
        """The number of bytes of the data."""
        return math.prod(self.shape) // self.block * self.block_bytes


class GgufFile:
    """An open GGUF file."""

    def __init__(self, path: Path) -> None:
        """Read the header and the table of the tensors.

        Raises:
            UserError: the file is no regular file, damaged or truncated, exceeds a limit, or has quantized tensors that
                the package ``gguf`` does not know or that need it where it is not installed.
        """
        self.path = path
        check_files(regular_file(path))
        with path.open("rb") as file:
            self._data = _mapped(file, path)
        cursor = _Cursor(self._data, path)
        if cursor.take(4, "magic") != _MAGIC:
            raise UserError(f"{path} must be a GGUF file, but does not begin with {_MAGIC.decode()}")
        version = cursor.number("I", "version")
        if version not in _VERSIONS:
            swapped = " (the file is of a big-endian machine)" if version == 3 << 24 else ""
            raise UserError(f"{path} must have version 2 or 3 of the format, but has {version}{swapped}")
        num_tensors = cursor.count("Q", "tensors", _MOST_TENSORS)
        num_keys = cursor.count("Q", "keys of metadata", _MOST_KEYS)
        self.metadata: dict[str, Any] = {}
        for _ in range(num_keys):
            key = cursor.text("key")
            if key in self.metadata:
                raise UserError(f"{path}: the key {shown(key)} must occur once, but occurs again")
            self.metadata[key] = cursor.value(key)
        self.tensors = self._table(cursor, num_tensors)

    def _table(self, cursor: "_Cursor", number: int) -> dict[str, GgufTensor]:
        entries = []
        for _ in range(number):
            name = cursor.text("name of a tensor")
            dimensions = cursor.count("I", f"dimensions of {shown(name)}", _MOST_DIMENSIONS)
            sizes = [cursor.number("Q", name) for _ in range(dimensions)]
            kind, offset = cursor.number("I", name), cursor.number("Q", name)
            entries.append((name, tuple(reversed(sizes)), kind, offset))
        alignment = self.metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 1 <= alignment <= _MOST_ALIGNMENT:
            raise UserError(
                f"{self.path}: general.alignment must be between 1 and {_MOST_ALIGNMENT}, but is {shown(alignment)}"
            )
        first = -(-cursor.at // alignment) * alignment
        problems: list[str] = []
        found: dict[str, GgufTensor] = {}
        for name, shape, kind, offset in entries:
            try:
                block, size = _block(self.path, kind)
            except UserError as error:
                raise UserError(f"{self.path}: {shown(name)}: {error}") from None
            tensor = GgufTensor(name, shape, kind, first + offset, block, size)
            problems += self._problems(tensor, name in found)
            found[name] = tensor
        needed = sum(tensor.bytes for tensor in found.values())
        if not problems and needed > len(self._data) - first:
            problems.append(f"the tensors need {needed:,} bytes, but the file has {len(self._data) - first:,} for them")
        if problems:
            raise UserError.of((f"{self.path}: {problem}" for problem in problems), f"{self.path} is damaged:", most=10)
        return found

    def _problems(self, tensor: GgufTensor, is_known: bool) -> list[str]:
        name = shown(tensor.name)
        if is_known:
            return [f"{name} must occur once, but occurs again"]
        if not tensor.shape or min(tensor.shape) < 1 or tensor.shape[-1] % tensor.block:
            return [f"{name} must have rows of whole blocks of {tensor.block}, but has the shape {tensor.shape}"]
        if tensor.start + tensor.bytes > len(self._data):
            end = tensor.start + tensor.bytes
            return [f"{name} must end within the file, at byte {end:,}, but the file has {len(self._data):,} bytes"]
        return []

    def read(self, name: str) -> Tensor:
        """Return a tensor: quantized ones as float32, others as they are stored.

        Raises:
            UserError: the package cannot dequantize it.
        """
        tensor = self.tensors[name]
        raw = np.frombuffer(self._data, np.uint8, tensor.bytes, tensor.start)
        if tensor.kind in _PLAIN:
            return torch.from_numpy(raw.copy()).view(_PLAIN[tensor.kind][0]).view(tensor.shape)
        blocks = raw.reshape(-1, tensor.block_bytes)
        result = torch.empty(len(blocks), tensor.block)
        step = max(1, _AT_ONCE // tensor.block)
        dequantize = _dequantizer(self.path, tensor)
        for first in range(0, len(blocks), step):
            part = result[first : first + step]
            # As one row: the package goes through rows 16 at a time.
            row = blocks[first : first + step].reshape(1, -1)
            part.copy_(torch.from_numpy(dequantize(row)).view_as(part))
        return result.view(tensor.shape)


class _Cursor:
    """Reads the header from the beginning."""

    def __init__(self, data: "mmap.mmap", path: Path) -> None:
        self.at = 0
        self._data, self._path = data, path
        self._end = min(len(data), LARGEST_FILE)

    def take(self, size: int, what: str) -> bytes:
        """Return the next bytes.

        Raises:
            UserError: the file, or the part of it that a header may take, has fewer.
        """
        if size > self._end - self.at:
            limit = f"the first {self._end:,} bytes" if self._end < len(self._data) else "the file"
            raise UserError(f"{self._path} is damaged or cut off: {shown(what)} must end within {limit}")
        self.at += size
        return self._data[self.at - size : self.at]

    def number(self, form: str, what: str) -> Any:
        """Return the next number, in the form of `struct`."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(form), what))[0]

    def count(self, form: str, what: str, most: int) -> int:
        """Return the next number, which counts something.

        Raises:
            UserError: it is larger than `most`.
        """
        number: int = self.number(form, what)
        if number > most:
            raise UserError(f"{self._path} must have at most {most:,} {what}, but has {number:,}")
        return number

    def text(self, what: str) -> str:
        """Return the next text.

        Raises:
            UserError: it is too long, or no UTF-8.
        """
        size = self.count("Q", f"bytes in {shown(what)}", _LONGEST_TEXT)
        try:
            return self.take(size, what).decode("utf-8")
        except UnicodeDecodeError:
            raise UserError(f"{self._path}: {shown(what)} must be UTF-8, but is not") from None

    def value(self, key: str) -> Any:
        """Return the next value, after its type.

        Raises:
            UserError: its type is unknown, or an array within an array.
        """
        kind = self.number("I", key)
        if kind == _ARRAY:
            kind = self.number("I", key)
            return self._array(key, kind)
        return self._single(key, kind)

    def _single(self, key: str, kind: int) -> Any:
        if kind == _TEXT:
            return self.text(key)
        if kind not in _NUMBERS:
            raise UserError(f"{self._path}: {shown(key)} must have a type of the format, but has {kind}")
        number = self.number(_NUMBERS[kind], key)
        # The shortest decimal number that is this float32: 1e-05, not 9.999999747378752e-06.
        return float(str(np.float32(number))) if kind == _FLOAT else number

    def _array(self, key: str, kind: int) -> list[Any]:
        number = self.count("Q", f"items of {shown(key)}", _MOST_ITEMS)
        if kind in _NUMBERS:
            form = np.dtype(_NUMBERS[kind]).newbyteorder("<")
            items: list[Any] = np.frombuffer(self.take(number * form.itemsize, key), form).tolist()
            return items
        if kind != _TEXT:
            raise UserError(f"{self._path}: {shown(key)} must be an array of numbers or texts, but has the type {kind}")
        return [self.text(key) for _ in range(number)]


def _mapped(file: Any, path: Path) -> mmap.mmap:
    try:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except (ValueError, OSError) as error:  # an empty file
        raise UserError(f"{path} cannot be read: {error}") from None


def _package(path: Path) -> Any:
    """Return the package ``gguf``.

    Raises:
        UserError: it is not installed.
    """
    try:
        import gguf
    except ImportError:
        raise UserError(f"{path} is quantized, which needs the package gguf: pip install s2sft_fairseq[gguf]") from None
    return gguf


def _block(path: Path, kind: int) -> tuple[int, int]:
    """Return the numbers of a block of this type, and its bytes.

    Raises:
        UserError: the type is unknown, or the package is not installed.
    """
    if kind in _PLAIN:
        return 1, _PLAIN[kind][1]
    gguf = _package(path)
    try:
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    except (ValueError, KeyError):
        raise UserError(f"type {kind} is unknown to the installed package gguf") from None
    return int(block), int(size)


def _dequantizer(path: Path, tensor: GgufTensor) -> Callable[[np.ndarray], np.ndarray]:
    gguf = _package(path)
    kind = gguf.GGMLQuantizationType(tensor.kind)

    def dequantize(blocks: np.ndarray) -> np.ndarray:
        try:
            with np.errstate(all="ignore"):  # numbers that are not finite are reported later, by name
                numbers: np.ndarray = gguf.dequantize(blocks, kind)
        except NotImplementedError:
            raise UserError(f"{path}: {tensor.name} is of type {kind.name}, which cannot be dequantized") from None
        return numbers.astype(np.float32, copy=False)

    return dequantize
