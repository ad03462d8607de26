"""Load a model for use in Python, as ``s2sft generate`` loads it."""

import contextlib
import os
import sys
import threading
import warnings
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from s2sft_fairseq.errors import UserError

DTYPES = ("auto", "float32", "bfloat16", "float16")
DEVICES = ("auto", "cpu", "cuda")
GENERATION_TASKS = ("unilm_seq2seq", "deltalm_seq2seq")

_RANDOM = threading.Lock()


@contextlib.contextmanager
def own_random_numbers(device: str = "cpu") -> Iterator[None]:
    """Context manager that restores the state of PyTorch's random number generators at its end.

    All threads share these generators, so a lock admits one thread at a time.
    """
    gpus = [torch.cuda.current_device()] if device == "cuda" else []
    with _RANDOM, torch.random.fork_rng(devices=gpus):
        yield


@contextlib.contextmanager
def _as_it_was() -> Iterator[None]:
    """Context manager that restores the hook for uncaught exceptions and the warning filters, which imports change."""
    hook, filters = sys.excepthook, warnings.filters[:]
    try:
        yield
    finally:
        sys.excepthook = hook
        warnings.filters[:] = filters  # type: ignore[index]


with _as_it_was():
    from s2sft_fairseq import plugin  # noqa: F401  (patches fairseq, and therefore comes first)

    # isort: split
    from fairseq import options as fairseq_options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.models import BaseFairseqModel
    from fairseq.tasks import TASK_REGISTRY, FairseqTask
    from omegaconf import DictConfig

    from s2sft_fairseq.checkpoints.model_folder import engine_of, is_model_folder
    from s2sft_fairseq.checkpoints.paddle_files import paddle_model
    from s2sft_fairseq.checkpoints.safe_loading import load_options
    from s2sft_fairseq.data.source_names import recorded_names
    from s2sft_fairseq.files import as_argument
    from s2sft_fairseq.hub import local_path, tokenizer_path
    from s2sft_fairseq.inference.generator import load_models
    from s2sft_fairseq.models.pretrained_checkpoint import section
    from s2sft_fairseq.runtime import warnings as warning_filters
    from s2sft_fairseq.runtime.gpu import multiplies_bf16
    from s2sft_fairseq.tokenization.folder import Tokenizer, open_tokenizer


@dataclass
class Loaded:
    """A model with its task, tokenizer and configuration."""

    models: Sequence[BaseFairseqModel]
    task: FairseqTask
    tokenizer: Tokenizer
    cfg: DictConfig
    """fairseq's configuration, with the defaults of ``s2sft generate --input``."""
    search: Mapping[str, Any]
    """The search options that a model folder sets, by the names of the options; empty for a checkpoint."""
    device: str
    state: Mapping[str, Any]
    """The ``task_state`` of the checkpoint."""
    source_names: tuple[str, ...] = ()
    """The names of the fields of a source that a model folder records; (): none."""

    def ids(self, text: str) -> np.ndarray:
        """Return the ids of a text without special symbols (S,)."""
        symbols = self.tokenizer.encode(text).split()
        return np.array([self.tokenizer.dictionary.index(symbol) for symbol in symbols], dtype=np.int64)


def load(
    path: str | os.PathLike[str],
    tokenizer: str | os.PathLike[str] | None,
    device: str,
    dtype: str,
    quantize: str | None,
    tasks: Sequence[str] = GENERATION_TASKS,
) -> Loaded:
    """Load a model.

    Args:
        path: a model folder, or the file of a checkpoint.
        tokenizer: the folder of the tokenizer; None: the model folder itself.
        device: ``cpu``, ``cuda``, or ``auto``: the GPU if there is one.
        dtype: data type of the weights and products; ``auto``: bfloat16 on GPUs that support it, otherwise float32.
        quantize: ``int8`` or None.
        tasks: names of the tasks that are accepted.

    Raises:
        UserError: naming every argument that is wrong, or what is wrong with the files.
    """
    path, tokenizer = find_files(path, tokenizer)
    check_arguments(path, tokenizer, device, dtype, quantize)
    device, dtype = settled("cpu" if device == "auto" and engine_of(path) else device, dtype)
    path, folder = Path(path), Path(tokenizer or path)
    state = load_options(path)
    name = str(section(state, "task").get("_name"))
    if name not in tasks:
        raise UserError(f"{path} must be a model of the task {' or '.join(tasks)}, but is one of {name}")
    words = [*model_words(path, folder, name, state), "--bpe=pretrained", f"--tokenizer-dir={folder}"]
    words += ["--cpu"] if device == "cpu" else []
    words += {"bfloat16": ["--bf16"], "float16": ["--fp16"], "float32": ["--float32"]}[dtype]
    words += [f"--quantize={quantize}"] if quantize else []
    # The model is initialized at random before its weights are loaded, and fairseq's use of Hydra raises warnings.
    with own_random_numbers(), warnings.catch_warnings():
        warning_filters.install()
        cfg = configuration(name, words)
        opened = open_tokenizer(folder)
        task = TASK_REGISTRY[name](cfg.task, opened.dictionary)
        models = load_models(cfg, task, device)
    kept = dict(state.get("task_state") or {})
    return Loaded(models, task, opened, cfg, state.get("search") or {}, device, kept, recorded_names(state))


def find_files(path: Any, tokenizer: Any) -> tuple[Any, Any]:
    """Return the paths of a model and its tokenizer, downloaded if they are names on the Hugging Face hub.

    What is neither a path nor a name is returned as it is: `check_arguments` names it.
    """
    if isinstance(path, str | os.PathLike):
        path = local_path(path)
    if isinstance(tokenizer, str | os.PathLike):
        tokenizer = tokenizer_path(tokenizer)
    return path, tokenizer


def settled(device: str, dtype: str) -> tuple[str, str]:
    """Return the device and the data type, with ``auto`` replaced by what this machine supports."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if dtype == "auto":
        dtype = "bfloat16" if device == "cuda" and multiplies_bf16() else "float32"
    return device, dtype


def check_arguments(path: Any, tokenizer: Any, device: Any, dtype: Any, quantize: Any = None) -> None:
    """Check the arguments of ``from_pretrained``.

    Raises:
        UserError: naming every argument that is wrong.
    """
    if problems := list(_problems(path, tokenizer, device, dtype, quantize)):
        raise UserError.of(problems)


def model_words(path: Path, data: Path, task: str, state: Mapping[str, Any]) -> list[str]:
    """Return the arguments of ``fairseq-generate`` that name a model.

    Values are joined to their option by ``=``, so that none that begins with a hyphen is read as another option. The
    language of the targets comes from the file.
    """
    languages = ((state.get("task_state") or {}).get("layout") or {}).get("languages") or []
    words = [as_argument(data), f"--path={path}", f"--task={task}"]
    return [*words, f"--target-lang={languages[0]}"] if languages else words


def configuration(task: str, words: Sequence[str]) -> DictConfig:
    """Return fairseq's configuration for the arguments of ``fairseq-generate``."""
    parser = fairseq_options.get_generation_parser(default_task=task)
    args: Namespace = fairseq_options.parse_args_and_arch(parser, list(words))
    return convert_namespace_to_omegaconf(args)


def _problems(path: Any, tokenizer: Any, device: Any, dtype: Any, quantize: Any) -> Iterator[str]:
    if not isinstance(path, str | os.PathLike):
        yield f"path must name a model folder or a checkpoint, but is {path!r:.60}"
    elif os.pathsep in str(path):
        yield f"path must not contain '{os.pathsep}', which separates models in fairseq's options, but is {path}"
    elif not Path(path).exists():
        yield f"path must be a model folder, the file of a checkpoint, or a name on the hub, but {path} does not exist"
    elif Path(path).is_dir() and (what := paddle_model(Path(path))):
        yield f"path must be a model folder or the file of a checkpoint, but {path} holds {what}"
    elif tokenizer is None and not is_model_folder(path):
        yield f"tokenizer is needed, for {path} is no model folder: the folder of the encoder that it was trained from"
    if not isinstance(tokenizer, str | os.PathLike | None):
        yield f"tokenizer must be the path of a folder, but is {tokenizer!r:.60}"
    for name, value, known in (("device", device, DEVICES), ("dtype", dtype, DTYPES)):
        if value not in known:
            yield f"{name} must be one of {', '.join(known)}, but is {value!r:.60}"
    if device == "cuda" and not torch.cuda.is_available():
        yield "device is cuda, but PyTorch finds no GPU"
    if quantize not in (None, "int8"):
        yield f"quantize must be 'int8' or None, but is {quantize!r:.60}"
