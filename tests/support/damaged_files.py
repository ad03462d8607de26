"""Damage to valid files that knows their format: values in JSON and pickles, words in text, and bytes in any file."""

import gzip
import io
import json
import pickle
import re
import warnings
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import _weights_only_unpickler

KINDS = ("value", "key", "remove", "flip", "cut", "double", "insert", "swap")
PLACES, CHOICES = 2**16, 2**8


class Damage(NamedTuple):
    """One change of a file: its kind, its place, and the choice of a value or of bytes; both numbers wrap around."""

    kind: str
    place: int
    choice: int


_DEEP = 100_000
# Texts of JSON values, also some that no JSON writer would write.
JSON_VALUES = (
    *("null", "true", "false", "0", "-1", "2.5", "1e400", "-1e400", "NaN", "1e-320", "4294967296", "1" + "0" * 30),
    *("9" * 5000, "9" * 400 + ".5", '""', '"x"', '"\\ud800"', '"a\\u0000b"', '"a\\nb"', '"../x"', '"${x}"', '"-1"'),
    *(f'"{"x" * 70_000}"', "[]", "[[]]", "[1]", '["x"]', "{}", '{"x": 1}', '{"": null}'),
    *("[" * _DEEP + "]" * _DEEP, '{"a":' * _DEEP + "1" + "}" * _DEEP, '{"type": "Lowercase"}', '" x "', '"[SEP]"'),
)
WORDS = (
    *(b"", b"0", b"-1", b"9" * 5000, b"1" + b"0" * 30, b"1e400", b"nan", b"\xc2\xb2", b"\xd9\xa1", b"x", b"x" * 70_000),
    *(b"\xff", b"\xed\xa0\x80", b"a\x00b", b"[SEP]", b"[PAD]", b"</s>", b"<unk>", b"..", b"\xe2\x80\xa8", b"\t", b'"'),
)
BYTES = (
    *(b"\x00", b"\r", b"\r\n", b"\n", b"\t", b" ", b'"', b"'", b"{", b"[", b"<", b"]]>", b"\xff\xfe", b"\xef\xbb\xbf"),
    *(b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\xc2\x85", b"\x1c", b"0" * 5000, b"x" * 70_000, b"\n" * 1000, b"(" * 1000),
    *(b"\xc0\x80", b"\xf4\x90\x80\x80", b"&#x110000;", b"&#xD800;", b"&lt;", b"#version: 9"),
)


def _endless() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["again"] = value
    return value


def _nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


@cache
def _objects() -> list[Any]:
    """Return values that a pickle can hold and no checkpoint does."""
    warnings.filterwarnings("ignore", "Sparse CSR|torch.quantize_per_tensor")
    one = torch.zeros(1)
    return [
        *(None, True, -1, 2**40, 10**5000, -(10**400), float("nan"), float("inf"), "", "x" * 70_000, "\ud800", b"x"),
        *([], [1], (), (1, "x"), {}, {1: 2}, {(1, 2): one}, {"x": None}, set(), {1}, _nested(50), _endless()),
        *(Namespace(), Namespace(arch="unilm"), Namespace(a=_nested(3)), complex(1, 2)),
        *(one, torch.tensor(1.0), torch.zeros(0), torch.zeros(3, dtype=torch.int8), torch.zeros(2, dtype=torch.bool)),
        *(one.expand(10**12), one.expand(10**6, 10**6), torch.zeros(2, 2).t(), torch.zeros(1, dtype=torch.complex64)),
        *(torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr(), torch.zeros(10**12, 10**3, device="meta")),
        *(torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8), torch.zeros(2, dtype=torch.float8_e4m3fn)),
        *(torch.full((3,), float("nan")), torch.full((3,), 1e38).half(), torch.nn.Parameter(one)),
        *(np.zeros(3), np.float32(1), torch.float32, torch.Size([1]), torch.device("cpu")),
    ]


Keys = tuple[Any, ...]


def _paths(tree: Any, path: Keys = ()) -> list[Keys]:
    """Return the paths to all values of a tree except its root."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list | tuple) else ()
    if isinstance(tree, Namespace):
        items = vars(tree).items()
    return [found for key, value in items for found in ((*path, key), *_paths(value, (*path, key)))]


def _changed(tree: Any, path: Keys, change: Callable[[dict[Any, Any], Any], None]) -> Any:
    """Return a copy of a tree with one value changed; everything off the path is shared."""
    copy = dict(vars(tree)) if isinstance(tree, Namespace) else dict(tree) if isinstance(tree, dict) else None
    if copy is None:
        copy = dict(enumerate(tree))
    if len(path) == 1:
        change(copy, path[0])
    else:
        copy[path[0]] = _changed(copy[path[0]], path[1:], change)
    if isinstance(tree, dict):
        return copy
    if isinstance(tree, Namespace):
        return Namespace(**{str(key): value for key, value in copy.items()})
    return type(tree)(copy.values())


def _with(tree: Any, paths: Sequence[Keys], damage: Damage, value: Any, key: Any) -> Any:
    """Return a tree with a value replaced, with one under another key, or without one."""

    def change(parent: dict[Any, Any], at: Any) -> None:
        if damage.kind == "value":
            parent[at] = value
        else:
            taken = parent.pop(at)
            if damage.kind == "key":
                parent[key] = taken

    return _changed(tree, paths[damage.place % len(paths)], change) if paths else value


@lru_cache(64)
def _json(content: bytes) -> tuple[Any, list[Keys]]:
    tree = json.loads(content)
    return tree, _paths(tree)


def _damaged_json(content: bytes, damage: Damage) -> bytes:
    mark, text = "the damaged value", JSON_VALUES[damage.choice % len(JSON_VALUES)]
    key = ("x", "", "x" * 5000, "0", mark)[damage.choice % 5]
    try:
        changed = _with(*_json(content), damage, mark, key)
        return json.dumps(changed).replace(f'"{mark}"', text).encode()
    except (ValueError, RecursionError):  # was damaged before
        return _damaged_text(content, damage)


def _damaged_text(content: bytes, damage: Damage) -> bytes:
    """Replace a word, or remove one."""
    parts = re.split(rb'([\s"|<>=,\[\]]+)', content)
    words = range(0, len(parts), 2)
    at = words[damage.place % len(words)]
    parts[at] = b"" if damage.kind == "remove" else WORDS[damage.choice % len(WORDS)]
    if damage.kind == "key":
        parts.insert(at, parts[at - 1] if at else b" ")
    return b"".join(parts)


def _damaged_bytes(content: bytes, damage: Damage) -> bytes:
    at = damage.place * len(content) // PLACES
    end = at + 1 + damage.choice * 8 % max(1, len(content) - at)
    if damage.kind == "flip":
        return content[:at] + bytes([content[at] ^ (damage.choice or 1)]) + content[at + 1 :] if content else b"x"
    if damage.kind == "cut":
        return content[:at]
    if damage.kind == "double":
        return content[:end] + content[at:]
    if damage.kind == "swap":
        lines = content.split(b"\n")
        one, other = at % len(lines), damage.choice % len(lines)
        lines[one], lines[other] = lines[other], lines[one]
        return b"\n".join(lines)
    return content[:at] + BYTES[damage.choice % len(BYTES)] + content[at:]


@lru_cache(64)
def _torch(content: bytes) -> tuple[Any, list[Keys]]:
    tree = torch.load(io.BytesIO(content), weights_only=True)  # after other damage it might otherwise run code
    return tree, _paths(tree)


@lru_cache(64)
def _pickle(content: bytes) -> tuple[Any, list[Keys]]:
    tree = _weights_only_unpickler.load(io.BytesIO(content), encoding="latin1")
    return tree, _paths(tree)


def _damaged_pickle(content: bytes, damage: Damage, *, is_torch: bool) -> bytes:
    values = _objects()
    value = values[damage.choice % len(values)]
    keys: list[Any] = [0, -1, (1, 2), "", "x" * 5000, None, "\ud800", 10**5000, b"x"]
    file = io.BytesIO()
    try:
        changed = _with(*(_torch if is_torch else _pickle)(content), damage, value, keys[damage.choice % len(keys)])
        if not is_torch:
            return pickle.dumps(changed, protocol=2)
        torch.save(changed, file)
    except Exception:  # it was damaged before, or no file can hold this value
        return _damaged_bytes(content, damage._replace(kind="flip"))
    return file.getvalue()


def _damaged_safetensors(content: bytes, damage: Damage) -> bytes:
    """Damage the header, which is JSON after its length."""
    length = int.from_bytes(content[:8], "little")
    header = _damaged_json(content[8 : 8 + length], damage)
    return len(header).to_bytes(8, "little") + header + content[8 + length :]


def damaged(name: str, content: bytes, damage: Damage) -> bytes:
    """Return the content of a file of this name after a change."""
    if name.endswith(".gz"):
        try:
            return gzip.compress(damaged(name.removesuffix(".gz"), gzip.decompress(content), damage), 1, mtime=0)
        except (OSError, EOFError):
            return _damaged_bytes(content, damage)
    if damage.kind not in ("value", "key", "remove"):
        return _damaged_bytes(content, damage)
    if name.endswith(".json"):
        return _damaged_json(content, damage)
    if name.endswith(".jsonl"):
        lines = content.split(b"\n")
        at = damage.choice // 7 % len(lines)
        lines[at] = _damaged_json(lines[at], damage)
        return b"\n".join(lines)
    if name.endswith((".pt", ".bin")):
        return _damaged_pickle(content, damage, is_torch=True)
    if name.endswith(".pdparams"):
        return _damaged_pickle(content, damage, is_torch=False)
    return _damaged_safetensors(content, damage) if name.endswith(".safetensors") else _damaged_text(content, damage)
