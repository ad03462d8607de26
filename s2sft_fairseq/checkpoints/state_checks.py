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
_MAY_BE_NONE = ("args", "cfg", "extra_state")
_SIZES = (
    *("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "decoder_layers", "decoder_embed_dim"),
    *("decoder_ffn_embed_dim", "embedding_dim", "max_positions", "num_segments", "num_roles", "num_turns"),
    *("relative_position_bins", "disentangled_buckets", "max_relative_position", "lm_head_dim", "head_dim"),
)
_SMALL = 2**26  # parameters
_MOST_LAYERS = 1_000  # of an encoder or a decoder; building a million takes a minute, however narrow they are
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


def check_sizes(file: str | os.PathLike[str], sizes: Mapping[str, Any], where: str) -> None:
    """Check that a model of these sizes has no more parameters than the file of its weights has bytes.

    Models whose lower bound is at most 64 million parameters (256 MiB) pass, whatever their file, if they have at most
    1,000 layers.

    Args:
        file: the file of the weights.
        sizes: the options of a model, of this package or of fairseq.
        where: the place of the sizes, for the message.

    Raises:
        UserError: if it has more, naming the sizes; or if it has too many layers.
    """
    for name in ("encoder_layers", "decoder_layers"):
        layers = sizes.get(name)
        if type(layers) is int and layers > _MOST_LAYERS:
            raise UserError(f"{where}: {name} must be at most {_MOST_LAYERS:,}, but is {layers:,}")
    size = os.path.getsize(file)
    if _least_parameters(sizes) > max(size, _SMALL):
        given = ", ".join(f"{name} {shown(sizes[name])}" for name in _SIZES if sizes.get(name))
        raise UserError(f"{where} must have sizes of a model that fits into {file} ({size:,} bytes), but has {given}")


def _least_parameters(sizes: Mapping[str, Any]) -> int:
    """Return a lower bound of the number of parameters of a model of these sizes."""
    given = {name: sizes[name] for name in _SIZES if type(sizes.get(name)) is int and sizes[name] > 0}
    found, width, inner = 0, 768, 3072  # those of BERT base, if none are given
    heads = sizes.get("encoder_attention_heads")
    attended = given["head_dim"] * (heads if type(heads) is int and heads > 0 else 1) if "head_dim" in given else None
    # A decoder without sizes of its own has those of the encoder.
    for part, layers in (("encoder", 1), ("decoder", 0)):
        width, inner = given.get(f"{part}_embed_dim", width), given.get(f"{part}_ffn_embed_dim", inner)
        # Queries and output of attention (H, h d), the two layers of the feed-forward network (H, F).
        found += given.get(f"{part}_layers", layers) * 2 * width * ((attended or width) + inner)
    width = given.get("encoder_embed_dim", width)
    rows = ["num_segments", "num_roles", "num_turns"]
    if str(sizes.get("disentangled_attention") or "none") != "none":
        rows += ["disentangled_buckets" if "disentangled_buckets" in given else "max_relative_position"]
    elif not sizes.get("rotary_base"):
        rows += ["max_positions"]
    found += given.get("embedding_dim", width) * sum(given.get(name, 0) for name in rows)
    return found + given.get("relative_position_bins", 0) + given.get("lm_head_dim", 0) * width


def check_state(path: str, state: Mapping[Any, Any]) -> None:
    """Check the names, parts, tensors and sizes of a checkpoint.

    Raises:
        UserError: naming the file and the first errors, each with what is needed and what is found.
    """
    problems = [f"{path}: {problem}" for problem in _fairseq_problems(state)]
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
        raise UserError.of(problems, most=_SHOWN)
    cfg = state.get("cfg")
    for where, options in (
        ("args", state.get("args")),
        ("cfg.model", cfg.get("model") if isinstance(cfg, dict) else None),
    ):
        options = dict(vars(options)) if isinstance(options, Namespace) else options
        # The sizes of a model with adapters are those of its encoder, whose weights are in another file.
        if isinstance(options, dict) and not options.get("lora_rank"):
            check_sizes(path, options, f"{path}: {where}")


def _fairseq_problems(state: Mapping[Any, Any]) -> Iterator[str]:
    """Yield errors in the parts of a checkpoint of fairseq; other programs' have no configuration."""
    if "model" not in state or not any(name in state for name in ("cfg", "args", "task_state")):
        return
    for name, kind in _KINDS.items():
        value = state.get(name, kind())
        if not isinstance(value, kind) and not (value is None and name in _MAY_BE_NONE):
            yield f"{name} must be a {kind.__name__}, but is a {type(value).__name__}"
    if isinstance(cfg := state.get("cfg"), dict):
        for part in ("model", "task"):
            if not isinstance(cfg.get(part, {}), dict | Namespace | None):
                yield f"cfg.{part} must be a dict, but is a {type(cfg[part]).__name__}"
    weights, of_task = state["model"], state.get("task_state")
    if isinstance(weights, dict):
        yield from (f"model.{problem}" for problem in _not_tensors(weights))
    if isinstance(of_task, dict):
        yield from layout_problems(of_task.get("layout", {}))


def check_tensors(weights: Mapping[str, Any], where: str) -> None:
    """Check that all weights are tensors.

    Raises:
        UserError: naming some that are not.
    """
    if problems := list(_not_tensors(weights)):
        raise UserError(f"{where} is damaged: {'; '.join(problems[:_SHOWN])}")


def _not_tensors(weights: Mapping[Any, Any]) -> Iterator[str]:
    """Yield the names and types of weights that are not tensors; other checks refuse names that are not text."""
    for name, value in weights.items():
        if isinstance(name, str) and not isinstance(value, Tensor):
            yield f"{name} must be a tensor, but is a {type(value).__name__}"


def layout_problems(layout: Any, place: str = "task_state.layout") -> Iterator[str]:
    """Yield errors in the names and types of a layout; the task of the model checks the values."""
    if not isinstance(layout, dict):
        yield f"{place} must be an object, but is {layout!r:.60}"
        return
    for name, value in layout.items():
        if not isinstance(name, str):
            kind, fits = "named by a text", False
        elif name == "languages":
            kind, fits = "a list of texts", isinstance(value, list) and all(isinstance(each, str) for each in value)
        elif name.startswith("max_") or name.endswith("_segment"):
            kind, fits = "a whole number", type(value) is int or value is None
        else:
            kind, fits = "a text", isinstance(value, str | None)
        if not fits:
            yield f"{place}.{name} must be {kind}, but is {value!r:.60}"


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
