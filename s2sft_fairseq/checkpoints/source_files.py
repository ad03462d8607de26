"""Find and read the files of a checkpoint to convert: weights, configuration and UniLM's vocabulary.

========================================  ==========================================================================
weights: a folder, or a file in it        files beside the weights
========================================  ==========================================================================
``model.safetensors``, or its index       ``config.json``
``pytorch_model.bin``, or its index       ``config.json``
``NAME.bin`` of UniLM                     ``NAME-config.json``, ``NAME-vocab.txt``
``NAME.ckpt``, ``NAME.pth``, ``NAME.pt``    ``config.json``; the weights may be under ``state_dict`` or ``model``
``model.pt`` of fairseq                   ``dict.txt``; the configuration is in the file
``deltalm-base.pt`` of DeltaLM              ``dict.txt``, ``spm.model``
``NAME.pdparams`` of Baidu's ERNIE        ``ernie_config.json`` or ``model_config.json``
``NAME.gguf`` of llama.cpp                nothing: the configuration and the tokenizer are in the file
========================================  ==========================================================================
"""

import re
from argparse import Namespace
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from s2sft_fairseq.checkpoints.families.settings import checked_kinds
from s2sft_fairseq.checkpoints.finite_weights import check_finite
from s2sft_fairseq.checkpoints.gguf_file import SUFFIX as GGUF
from s2sft_fairseq.checkpoints.gguf_models import read_gguf
from s2sft_fairseq.checkpoints.paddle_files import paddle_model, paddle_nlp_problem
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint, load_pickle
from s2sft_fairseq.checkpoints.safetensors_file import read_safetensors
from s2sft_fairseq.data.bounded_files import read_json_object
from s2sft_fairseq.errors import UserError, shown
from s2sft_fairseq.received import check_parts, has_part, part, regular_file

WEIGHTS = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
    "model.pt",
)
_LONGEST_NAME = 120
# Keys under which programs of training save the weights, beside the state of the optimizer: Lightning's comes first.
_WRAPPERS = ("state_dict", "model_state_dict", "model", "module")
# torch.compile, FSDP, activation checkpointing and DeepSpeed put modules of these names around those of the model.
_AROUND = re.compile(r"(?<![^.])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module|_forward_module)\.")
_PARALLEL = "module."  # DistributedDataParallel
CONFIGS = ("config.json", "ernie_config.json", "model_config.json")


@dataclass
class SourceCheckpoint:
    """A checkpoint in its original format."""

    file: Path
    """The file of the weights, or their index."""
    weights: dict[str, Tensor]
    config: dict[str, Any]


def open_source(path: Path, config: Path | None = None) -> SourceCheckpoint:
    """Read a checkpoint.

    Args:
        path: a folder, or the file of the weights.
        config: the configuration, if it is not beside the weights under a usual name.

    Raises:
        UserError: naming the files that are missing, damaged or invalid.
    """
    file = find_weights(path)
    problems: list[str] = []
    weights: dict[str, Tensor] = {}
    inner: Mapping[str, Any] | None = None
    try:
        weights, inner = _read_weights(file)
        check_finite(file, weights)
    except UserError as error:
        problems += error.problems
    found: dict[str, Any] = {}
    try:
        # A fairseq checkpoint has its own configuration; one beside it may belong to something else.
        beside = config or (None if inner else find_config(file))
        if beside is not None:
            found = checked_kinds(beside, read_json_object(beside))
        elif inner is None and not problems:
            problems.append(f"{file} needs its configuration beside it, {_or(_config_names(file))}, or --config FILE")
    except UserError as error:
        problems += error.problems
    if problems:
        raise UserError.of(problems)
    return SourceCheckpoint(file, weights, {**(inner or {}), **found})


def find_weights(path: Path) -> Path:
    """Return the file of the weights.

    Raises:
        UserError: if there is none, or the folder holds several models.
    """
    if not path.exists() and not path.is_symlink():
        raise UserError(f"{path}: no such file or folder")
    if not path.is_dir():
        regular_file(path)
        if what := paddle_model(path):
            raise UserError(f"{path} is {what}")
        return path
    found = _weights_of(path)
    if not found and (what := paddle_model(path)):
        raise UserError(f"{path} holds {what}")
    if len(found) > 1:
        raise UserError(f"{path} must hold the weights of one model, but holds {_names(found)}: give the file itself")
    if not found and (snapshots := sorted(path.glob("snapshots/*"))):
        raise UserError(f"{path} is a model in Hugging Face's cache: give its files, which are in {snapshots[-1]}")
    if not found:
        needed = _or([*WEIGHTS, "NAME.bin with NAME-config.json", "*.pdparams", "*.pt", "*.gguf"])
        raise UserError(f"{path} must hold {needed}, but holds {_names(path.iterdir()) or 'nothing'}")
    return found[0]


def _weights_of(folder: Path) -> list[Path]:
    """Return the files of weights in a folder, of the first kind in order of preference that it has."""
    named = [file for file in sorted(folder.glob("*.bin")) if has_part(file.with_name(_config_names(file)[0]))]
    usual = [folder / name for name in WEIGHTS if has_part(folder / name)]
    others = (sorted(folder.glob(pattern)) for pattern in ("*.pdparams", "*.pt", "*.ckpt", "*.pth", "*.gguf"))
    found = usual[:1] or named or next(filter(None, others), [])
    check_parts(found)
    return found


def _names(files: Iterable[Path]) -> str:
    return ", ".join(sorted(file.name for file in files))


def find_vocabulary(path: Path) -> Path | None:
    """Return UniLM's ``NAME-vocab.txt`` beside a file of weights, or beside those in a folder; None if missing."""
    files = _weights_of(path) if path.is_dir() else [path]
    named = [file.with_name(f"{file.stem}-vocab.txt") for file in files[:1]]
    return next((file for file in named if has_part(file)), None)


def find_gguf(path: Path) -> Path | None:
    """Return the GGUF file that a folder's weights are, or a file itself if it is one; None if there is none."""
    files = _weights_of(path) if path.is_dir() else [path]
    return next((file for file in files if file.suffix == GGUF), None)


def find_config(file: Path) -> Path | None:
    """Return the configuration beside a file of weights, if there is one."""
    beside = [file.with_name(name) for name in _config_names(file)]
    return next((path for path in beside if has_part(path)), None)


def _config_names(file: Path) -> list[str]:
    return [f"{file.stem}-config.json", *CONFIGS]


def _or(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _read_weights(file: Path) -> tuple[dict[str, Tensor], Mapping[str, Any] | None]:
    """Return the tensors by name, and the configuration if the file holds one, else None."""
    if file.name.endswith(".index.json"):
        return _read_shards(file), None
    if file.suffix == ".safetensors":
        return read_safetensors(file), None
    if file.suffix == GGUF:
        return read_gguf(file)
    state = load_pickle(file) if file.suffix == ".pdparams" else load_checkpoint(file, lazily=True)
    if file.suffix == ".pdparams" and (problem := paddle_nlp_problem(state)):
        raise UserError(f"{file}: {problem}")
    inner = None
    options = state.get("args") or state.get("cfg")
    if options is not None and isinstance(state.get("model"), dict):
        inner = checked_kinds(file, _fairseq_options(file, options))
        state = state["model"]
    elif wrapper := next((name for name in _WRAPPERS if isinstance(state.get(name), dict)), None):
        state = state[wrapper]
    elif isinstance(state.get("weights"), dict):  # official DeltaLM: its sizes follow from the shapes
        state, inner = state["weights"], {"_name": "deltalm"}
    if strange := [
        f"{_plain(name)} is a {type(value).__name__}" for name, value in state.items() if not isinstance(value, Tensor)
    ]:
        raise UserError(f"{file} must hold tensors by name, but {', '.join(strange[:5])}")
    return _unwrapped(file, state), inner


def _unwrapped(file: Path, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by the names of the model itself, without those of the modules that training put around it.

    Raises:
        UserError: two tensors would have the same name.
    """
    names = {name: _AROUND.sub("", name) for name in state}
    if all(name.startswith(_PARALLEL) for name in names.values()):
        names = {name: inner.removeprefix(_PARALLEL) for name, inner in names.items()}
    if len(set(names.values())) < len(names):
        raise UserError(f"{file} must hold each tensor once, but has some with and without _orig_mod. in their names")
    return {names[name]: value for name, value in state.items()}


def _fairseq_options(file: Path, options: Any) -> dict[str, Any]:
    """Return the options of the model that a fairseq checkpoint holds."""
    values = options if isinstance(options, Namespace) else options.get("model") or {}
    if not isinstance(values, dict | Namespace):
        raise UserError(f"{file}: cfg.model must be a dict, but is a {type(values).__name__}")
    values = dict(vars(values) if isinstance(values, Namespace) else values)
    name = values.get("_name") or values.get("arch") or ""
    if name == "unilm" or "relative_position_bins" in values:
        raise UserError(
            f"{file} is a checkpoint of this plugin's own: go on training from it with --finetune-from-model, "
            "or write it in Hugging Face's format with s2sft export --format hugging_face"
        )
    return values


def _read_shards(index: Path) -> dict[str, Tensor]:
    """Read all files that an index names."""
    table = read_json_object(index).get("weight_map")
    if not isinstance(table, dict) or not all(isinstance(name, str) for name in table.values()):
        raise UserError(f"{index} must have a weight_map from names of tensors to names of files, but has none")
    files = sorted(set(table.values()))
    # Accept only names of weight files in the folder, so that no name leads out of it or back to the index.
    beside = {path.name for path in index.parent.iterdir() if path.suffix in (".safetensors", ".bin")}
    if missing := [_plain(name) for name in files if name not in beside]:
        raise UserError(f"{index} names {len(files)} files, but these are missing beside it: {', '.join(missing[:10])}")
    weights: dict[str, Tensor] = {}
    for name in files:
        shard, _ = _read_weights(part(index.with_name(name)))
        weights |= shard
    if absent := sorted(table.keys() - weights.keys()):
        raise UserError(f"{index} names tensors that its files lack: {', '.join(map(_plain, absent[:10]))}")
    return weights


def _plain(name: str) -> str:
    """Return a name from a file in a form that is safe to print."""
    return name if name.isprintable() and len(name) <= _LONGEST_NAME else shown(name)
