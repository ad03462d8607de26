"""A model folder: a trained model to share, which loads without running code and without the pretrained encoder.

=====================  ==============================================================================================
``model.safetensors``  the weights by the names of the parameters of the model
``config.json``        the rest of a checkpoint: options of model, task and criterion, and the state of the task; also
                       the search options that the user chose, and facts about the training
``dict.txt``           the fairseq dictionary; symbol *i* is row *i* of the embedding
``README.md``          a model card
``SHA256SUMS``         checksums of the other files except the card
others                 the files of the tokenizer
=====================  ==============================================================================================

Everything that loads a checkpoint also loads a model folder, or its ``model.safetensors``, as if it were a checkpoint.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq import __version__
from s2sft_fairseq.checkpoints.paddle_files import paddle_model
from s2sft_fairseq.checkpoints.safetensors_file import read_safetensors, write_safetensors
from s2sft_fairseq.checkpoints.state_checks import check_sizes, layout_problems
from s2sft_fairseq.checksums import check_files
from s2sft_fairseq.data.bounded_files import read_json_object
from s2sft_fairseq.data.source_names import NAMES, names_problem, recorded_names
from s2sft_fairseq.errors import UserError, shown
from s2sft_fairseq.received import check_parts, has_part
from s2sft_fairseq.search_bounds import SEARCH

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
FORMAT, VERSION = "s2sft_fairseq model", 1
ENGINES: Mapping[str, str] = {"ctranslate2": "model.bin", "onnx": "model.onnx"}
"""The engines that run exported models in place of PyTorch, and the file of the weights for each."""
_PARTS = ("model", "task", "criterion")
_PATHS = ("data", "span_vocab", "pretrained")  # paths on the machine of the training, which are removed


def is_model_folder(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a model folder; errors in one are reported when it is read."""
    config = Path(path) / CONFIG
    if not has_part(config):
        return False
    try:
        return read_json_object(config).get("format") == FORMAT
    except UserError:  # a damaged file counts as that of a model folder if the weights are beside it
        return any(has_part(Path(path) / name) for name in (WEIGHTS, *ENGINES.values()))


def engine_of(path: str | os.PathLike[str]) -> str | None:
    """Return the engine that a model folder is for, or None for PyTorch and for paths that are no model folder.

    Raises:
        UserError: if the engine is unknown.
    """
    engine = read_json_object(Path(path) / CONFIG).get("engine") if is_model_folder(path) else None
    if engine is not None and not (isinstance(engine, str) and engine in ENGINES):
        raise UserError(f"{Path(path) / CONFIG}: engine must be one of {', '.join(ENGINES)}, but is {shown(engine)}")
    return engine


def source_names_of(path: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the names of the fields of a source that the model of ``--path`` records; () if it is no model folder.

    Args:
        path: a model folder or its file of weights, or a checkpoint; of an ensemble the first one counts.

    Raises:
        UserError: something is wrong with the folder.
    """
    first = Path(str(path).split(os.pathsep)[0])
    folder = first.parent if first.name in (WEIGHTS, *ENGINES.values()) else first
    return recorded_names(read_config(folder)) if is_model_folder(folder) else ()


def checkpoint_file(path: str | os.PathLike[str]) -> Path:
    """Return the file of the weights of a model folder; any other path is returned unchanged.

    Raises:
        UserError: it exists, but is no regular file of the folder.
    """
    if not is_model_folder(path):
        return Path(path)
    engine = engine_of(path)
    file = Path(path) / (ENGINES[engine] if engine else WEIGHTS)
    check_parts([file])
    return file


def what_it_is(folder: Path) -> str:
    """Return a description, for messages, of a folder that is not a model folder, and what to do with it."""
    if what := paddle_model(folder):
        return f"a folder with {what}"
    if (folder / CONFIG).is_file() and (folder / "model.pt").is_file():
        return "the folder of a converted encoder, which s2sft train --pretrained begins with"
    if (folder / CONFIG).is_file():
        return "the folder of another program's model: s2sft convert makes an encoder of it"
    if (folder / WEIGHTS).is_file():
        return f"a folder without {CONFIG}: copy all files of the model folder"
    if found := sorted(path.name for path in folder.glob("checkpoint*.pt")):
        return f"a folder of checkpoints: name one of them, such as {found[0]}"
    return f"a folder without {CONFIG} and {WEIGHTS}"


def write_model(
    state: Mapping[str, Any], folder: Path, search: Mapping[str, Any], training: Mapping[str, Any]
) -> dict[str, Any]:
    """Write weights and configuration.

    Args:
        state: the state of a checkpoint; adapters must have been merged.
        folder: the folder to write to.
        search: the recommended options of ``s2sft generate``, by name.
        training: facts about the training, by name.

    Returns:
        The configuration.

    Raises:
        UserError: if ``search`` has options other than those in `SEARCH`, or of a wrong type.
    """
    weights, copies = _own_memory(state["model"])
    config = {**configuration(state, search, training), "copies": copies}
    write_safetensors(weights, folder / WEIGHTS)
    write_config(config, folder)
    return config


def configuration(
    state: Mapping[str, Any], search: Mapping[str, Any], training: Mapping[str, Any], engine: str | None = None
) -> dict[str, Any]:
    """Return the configuration of a model folder.

    Args:
        state: the state of a checkpoint.
        search: the recommended options of ``s2sft generate``, by name.
        training: facts about the training, by name.
        engine: the engine that runs the model, one of `ENGINES`; None: PyTorch.

    Raises:
        UserError: if ``search`` has options other than those in `SEARCH`, or of a wrong type.
    """
    if problems := list(_search_problems(search)):
        raise UserError.of(problems)
    cfg = {name: dict(part) for name in _PARTS if (part := _plain(state["cfg"].get(name)))}
    for part in cfg.values():
        part |= {name: "" if name == "data" else None for name in _PATHS if name in part}
    return {
        "format": FORMAT,
        "format_version": VERSION,
        "package_version": __version__,
        **({"engine": engine} if engine else {}),
        "cfg": cfg,
        "task_state": dict(state.get("task_state") or {}),
        **({NAMES: list(names)} if (names := recorded_names(state)) else {}),
        "search": dict(search),
        "training": dict(training),
    }


def write_config(config: Mapping[str, Any], folder: Path) -> None:
    """Write the ``config.json`` of a model folder."""
    (folder / CONFIG).write_text(json.dumps(config, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_model(weights: Path) -> dict[str, Any]:
    """Read a model folder as a checkpoint of a training without updates; ``search`` holds the search options.

    Args:
        weights: the file ``model.safetensors``.

    Raises:
        UserError: if the file, or ``config.json`` beside it, is missing, damaged or of a newer version, if the sizes in
            ``config.json`` are far too large for the file, or if the folder is for an engine.
    """
    config = read_config(weights.parent)
    if engine := config.get("engine"):
        raise UserError(
            f"{weights.parent} holds a model for {engine}, which only s2sft generate --input and Seq2Seq can "
            "run: give the model that it was exported from"
        )
    check_files(weights, weights.parent / CONFIG)
    check_sizes(weights, config["cfg"]["model"], f"{weights.parent / CONFIG}: cfg.model")
    model = read_safetensors(weights)
    if unknown := sorted(set(config["copies"].values()) - model.keys()):
        raise UserError(f"{weights} must hold the tensors that {CONFIG} names, but lacks {', '.join(unknown)}")
    return as_checkpoint(config, {**model, **{name: model[other] for name, other in config["copies"].items()}})


def as_checkpoint(config: Mapping[str, Any], model: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return the configuration and the weights of a model folder as a checkpoint."""
    history = {"criterion_name": "", "optimizer_name": "", "lr_scheduler_state": {}, "num_updates": 0}
    return {
        "args": None,
        "cfg": {"_name": None, **config["cfg"]},
        "model": dict(model),
        "criterion": None,
        "optimizer_history": [history],
        "task_state": config["task_state"],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
        "last_optimizer_state": None,
        "search": config["search"],
        NAMES: config.get(NAMES),
    }


def read_config(folder: Path) -> dict[str, Any]:
    """Read the ``config.json`` of a model folder.

    Raises:
        UserError: naming everything that is wrong with it.
    """
    path = folder / CONFIG
    config = read_json_object(path) if has_part(path) else {}
    if config.get("format") != FORMAT:
        raise UserError(f"{folder} must be a model folder, as s2sft export writes it, but is {what_it_is(folder)}")
    version = config.get("format_version")
    if type(version) is not int or not 0 < version <= VERSION:
        raise UserError(
            f"{path} has format_version {version!r:.20}, but this version of the package ({__version__}) reads up to "
            f"{VERSION}: update it"
        )
    config = {"search": {}, "training": {}, "copies": {}, **config}
    if NAMES in config and (what := names_problem(config[NAMES])):
        raise UserError(f"{path}: {NAMES} {what}")
    names = ("cfg", "task_state", "search", "training", "copies")
    wrong = [name for name in names if not isinstance(config.get(name), dict)]
    if "cfg" not in wrong:
        wrong += [f"cfg.{name}" for name in ("model", "task") if not isinstance(config["cfg"].get(name), dict)]
    problems = [f"{name} must be an object, but is missing or none" for name in wrong]
    if "copies" not in wrong and not all(isinstance(name, str) for name in config["copies"].values()):
        problems.append("copies must be names of tensors by name")
    if "task_state" not in wrong:
        problems += layout_problems(config["task_state"].get("layout", {}))
    if "search" not in wrong:
        problems += _search_problems(config["search"])
    if problems:
        raise UserError.of(f"{path}: {problem}" for problem in problems)
    return config


def _search_problems(search: Mapping[str, Any]) -> Iterator[str]:
    for name, value in search.items():
        if name not in SEARCH:
            yield f"search.{name:.40} is no option of a search: {', '.join(SEARCH)}"
        elif what := SEARCH[name].problem(value):
            yield f"search.{name} {what}"


def _plain(options: Any) -> dict[str, Any]:
    return dict(options) if isinstance(options, Mapping) else dict(vars(options)) if options is not None else {}


def _own_memory(weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return each tensor once, with its own storage, and a map from its further names to the name that is kept."""
    kept: dict[str, Tensor] = {}
    first: dict[tuple[Any, ...], str] = {}
    copies: dict[str, str] = {}
    whole: set[int] = set()
    for name, value in weights.items():
        place = (value.data_ptr(), value.shape, value.stride(), value.dtype)
        if value.numel() and place in first:
            copies[name] = first[place]
        else:
            first[place] = name
            # Copy slices, so that the whole storage is not written, and further tensors that use the same storage.
            memory = value.untyped_storage()
            is_whole = value.is_contiguous() and memory.nbytes() == value.numel() * value.element_size()
            is_whole = is_whole and memory.data_ptr() not in whole
            whole.add(memory.data_ptr())
            kept[name] = value if is_whole else value.clone(memory_format=torch.contiguous_format)
    return kept, copies
