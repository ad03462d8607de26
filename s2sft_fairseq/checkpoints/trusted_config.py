"""Check that the configuration in a checkpoint cannot run code.

fairseq builds a model, a task, a criterion, a tokenizer and a BPE from the names in a checkpoint, and some of its
classes pass options to Python's `eval`. Checkpoints are not trusted. A configuration may therefore name only

* classes that this plugin registers, or the user's own plugin (``--user-dir``): the user imported those;
* a few classes of fairseq, listed here, that only compute with their options;

and no option may be a text of Python code. The paths in a configuration are those of another machine, or were made to
read a file of this one: `clear_paths` removes them. Options on the command line are the user's own and are not checked;
with ``--model-overrides`` the user names a path anew.
"""

import ast
import logging
import re
import warnings
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import count
from typing import Any

import torch
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from s2sft_fairseq.errors import UserError, shown

logger = logging.getLogger(__name__)

FROM_FAIRSEQ: dict[str, tuple[str, ...]] = {
    "model": ("transformer", "transformer_align", "transformer_lm", "bart", "roberta"),
    "task": (
        *("translation", "translation_from_pretrained_bart", "language_modeling", "masked_lm", "denoising"),
        "sentence_prediction",
    ),
    "criterion": (
        *("cross_entropy", "label_smoothed_cross_entropy", "label_smoothed_cross_entropy_with_alignment"),
        *("adaptive_loss", "masked_lm", "sentence_prediction"),
    ),
    "tokenizer": ("moses", "nltk", "space"),
    "bpe": (
        *("bert", "byte_bpe", "bytes", "characters", "fastbpe", "gpt2", "hf_byte_bpe", "sentencepiece", "subword_nmt"),
    ),
}
"""The names of fairseq's classes that a checkpoint may ask for, by the part of the configuration."""

# The options that name the class of a part: `_name` since fairseq 0.10; before, the part itself, for a model `arch`.
_NAMES = {part: ("_name", "arch" if part == "model" else part) for part in FROM_FAIRSEQ}
# Names of files and folders may look like code, such as runs(1), but are never evaluated.
_PATHS = frozenset(("data", "pretrained", "save_dir", "restore_file", "finetune_from_model", "user_dir", "log_file"))
# Names of files and folders in fairseq's classes and this plugin's, and by their form in a user's plugin.
_NAMED = (
    *("continue_once", "span_vocab", "tensorboard_logdir", "pretrained_checkpoint", "load_pretrained_.*"),
    *("sentencepiece_model", "bpe_codes", "bpe_merges", "bpe_vocab", "gpt2_encoder_json", "gpt2_vocab_bpe"),
)
_CLEARED = re.compile("|".join([*(_PATHS - {"data"}), *_NAMED, "(.*_)?(path|file|dir|folder)s?"]))
_ABSENT = ("pretrained", "span_vocab", "user_dir")  # None means that there is none; fairseq's own must be texts
_PLAIN = (type(None), bool, int, float)
_HARMLESS_NODES = (
    *(ast.Expression, ast.Constant, ast.Name, ast.Load, ast.Attribute, ast.Tuple, ast.List, ast.Dict, ast.Set),
    *(ast.UnaryOp, ast.unaryop, ast.BinOp, ast.Add, ast.Sub, ast.Div, ast.FloorDiv, ast.BitOr),
)
_MOST_VALUES = 100_000  # fairseq has some thousand options
_SHOWN = 60

_not_built: ContextVar[frozenset[str]] = ContextVar("_not_built", default=frozenset())


@contextmanager
def not_built(*parts: str) -> Iterator[None]:
    """Context manager in which `check_config` skips these parts, as nothing is built from them."""
    token = _not_built.set(frozenset(parts))
    try:
        yield
    finally:
        _not_built.reset(token)


def check_config(path: str, state: Mapping[str, Any]) -> None:
    """Refuse a checkpoint whose configuration asks for code to be run.

    Args:
        path: the path of the checkpoint, for the message.
        state: the contents of the file.

    Raises:
        UserError: naming the file, each field, its value, and what is allowed.
    """
    skipped = _not_built.get()
    if skipped.issuperset(FROM_FAIRSEQ):
        return
    try:
        problems = [f"{path}: {problem}" for problem in _problems(state, skipped)]
    except RecursionError:
        raise UserError(f"{path}: cfg must be a dictionary of options, but is nested without end") from None
    if problems:
        raise UserError.of(problems, most=20)


def clear_paths(path: str, state: Mapping[str, Any]) -> None:
    """Remove the paths from the configuration of a checkpoint, in place, so that none is opened.

    Two remain (docs/reliability.md): ``pretrained`` of a model with adapters, the folder of its encoder; and ``data``.
    Commands name their own data. A Python program that has fairseq build the task of a checkpoint reads its
    dictionaries there.

    Args:
        path: the path of the checkpoint, for the log.
        state: the contents of the file, which `check_config` has checked.
    """
    if _not_built.get().issuperset(FROM_FAIRSEQ):
        return
    for name in ("args", "cfg"):
        for field in _clear(state.get(name), name):
            logger.warning(f"{path}: {field} names a file, which is not opened: name it yourself if it is needed")


def build_without_weights(task: Any, path: str, state: Mapping[str, Any]) -> Any:
    """Build the model of a configuration from a file on PyTorch's device "meta", which needs no memory for weights.

    Args:
        task: the task, which has the state of the file.
        path: the file, for messages.
        state: the contents of the file; its paths are removed.

    Raises:
        UserError: the configuration could run code, or its options do not fit the model or the task.
    """
    check_config(path, state)
    clear_paths(path, state)
    options = _values(state["cfg"]["model"])
    try:
        with torch.device("meta"):
            return task.build_model(OmegaConf.create({"_name": None, **options}), from_checkpoint=True)
    except OmegaConfBaseException as error:
        raise UserError(f"an option has another type: {error}") from error


def _clear(options: Any, where: str) -> Iterator[str]:
    """Remove the paths from options and their parts; yield the places of those that results may depend on."""
    values = _values(options) if isinstance(options, dict | Namespace) else {}
    for key, value in values.items():
        place = f"{where}.{key}"
        if not isinstance(value, str):
            yield from _clear(value, place)
        elif value and _CLEARED.fullmatch(str(key)) and not (key == "pretrained" and values.get("lora_rank")):
            values[key] = None if key in _ABSENT else ""
            is_read = place.startswith(("cfg.model.", "cfg.task.")) or key.endswith("embed_path")
            if is_read and key not in _PATHS:
                yield place


def _problems(state: Mapping[str, Any], skipped: frozenset[str]) -> Iterator[str]:
    # Before fairseq 0.10 all options are in one Namespace.
    for name, kind in (("args", Namespace), ("cfg", dict)):
        config = state.get(name)
        if config is None:
            continue
        if not isinstance(config, kind):
            yield f"{name} must be a {kind.__name__}, but is a {type(config).__name__}"
            continue
        for part in (part for part in FROM_FAIRSEQ if part not in skipped):
            where, options = (name, config) if kind is Namespace else (f"{name}.{part}", config.get(part))
            yield from _class_problems(part, options, where)
        yield from _value_problems(config, name, count())


def _class_problems(part: str, options: Any, where: str) -> Iterator[str]:
    """Yield errors in the class that a part of the configuration names."""
    if options is None:
        return
    if isinstance(options, str):
        named = {where: options}
    else:
        values = _values(options) if isinstance(options, dict | Namespace) else {}
        named = {f"{where}.{key}": values[key] for key in _NAMES[part] if values.get(key) is not None}
        if part == "model" and not named:  # fairseq would take the name of the first option
            has = ", ".join(map(str, values))[:_SHOWN] or "none"
            yield f"{where} must name its class by _name or arch, but has {has}"
    for field, name in named.items():
        if not isinstance(name, str) or not _may_be_built(part, name):
            yield (
                f"{field} is {shown(name)}, but a checkpoint may name only a {part} of this plugin or of "
                f"--user-dir, or one of {', '.join(FROM_FAIRSEQ[part])}"
            )


def _may_be_built(part: str, name: str) -> bool:
    if part == "model":
        cls, name = ARCH_MODEL_REGISTRY.get(name) or MODEL_REGISTRY.get(name), ARCH_MODEL_NAME_REGISTRY.get(name, name)
    else:
        cls = (TASK_REGISTRY if part == "task" else REGISTRIES[part]["registry"]).get(name)
    if cls is None:
        # Nothing can be built by an unknown name. Generation needs no criterion, so that it need not be known.
        return part == "criterion"
    # A class outside fairseq was imported by the user or belongs to this plugin.
    return cls.__module__.partition(".")[0] != "fairseq" or name in FROM_FAIRSEQ[part]


def _value_problems(value: Any, field: str, looked_at: Iterator[int]) -> Iterator[str]:
    """Yield an error for each text that is code or refers to another value, and each value of a type no option has.

    Args:
        value: the value of an option, or a part of it.
        field: its place.
        looked_at: counts the values; a short pickle can hold billions by nesting references to lists.

    Raises:
        RecursionError: if there are too many values.
    """
    if next(looked_at) > _MOST_VALUES:
        raise RecursionError
    if isinstance(value, dict | Namespace):
        for key, inner in _values(value).items():
            place = f"{field}.{key if isinstance(key, str) else shown(key)}"
            if key not in _PATHS or not isinstance(inner, str) or "${" in inner:
                yield from _value_problems(inner, place, looked_at)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from _value_problems(inner, f"{field}[{index}]", looked_at)
    elif isinstance(value, str):
        if "${" in value or _is_code(value):
            yield f"{field} is {shown(value)}, but an option must be a number, a word or a path, not Python code"
    elif not isinstance(value, _PLAIN) or (isinstance(value, int) and value.bit_length() > 64):
        found = shown(value) if isinstance(value, int) else f"a {type(value).__name__}"
        yield f"{field} must be a number, a text, or a list of them, but is {found}"


def _is_code(text: str) -> bool:
    """Return whether evaluating a text would do more than read numbers and names and combine them."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text.lstrip(" \t"), mode="eval")  # eval() strips the same
    except (SyntaxError, ValueError):
        return False  # eval() fails, too
    except (RecursionError, MemoryError):
        return True  # eval() may succeed if it has a little more stack
    return not all(isinstance(node, _HARMLESS_NODES) for node in ast.walk(tree))


def _values(options: dict[str, Any] | Namespace) -> dict[str, Any]:
    return vars(options) if isinstance(options, Namespace) else options
