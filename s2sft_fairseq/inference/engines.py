"""Engines other than PyTorch that run an exported model in a search.

An engine takes the place of the models of a search. Its folder is a model folder whose weights are in the engine's own
format; task, tokenizer, batches and files do not change. To add an engine, write a class with the attributes of
`Engine` and an exporter that writes its folder, and add its name to `_OPENERS` and `checkpoints.model_folder.ENGINES`.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import Tensor

from s2sft_fairseq.checkpoints.model_folder import CONFIG, as_checkpoint, engine_of, read_config
from s2sft_fairseq.checkpoints.trusted_config import build_without_weights
from s2sft_fairseq.checksums import check_files
from s2sft_fairseq.errors import UserError, about
from s2sft_fairseq.inference.ctranslate2_engine import open_ctranslate2
from s2sft_fairseq.inference.onnx_engine import open_onnx
from s2sft_fairseq.received import check_parts

Hypotheses = list[list[dict[str, Any]]]


class Generator(Protocol):
    """Generates for a batch, as `SequenceGenerator` and fairseq's do."""

    symbols_to_strip_from_output: set[int]

    def generate(
        self, models: Any, sample: dict[str, Any], prefix_tokens: Tensor | None = None, constraints: Any = None
    ) -> Hypotheses:
        """Return the hypotheses of each sentence of ``net_input.src_tokens`` (N, S), the best first."""


@runtime_checkable
class Engine(Protocol):
    """An exported model and the program that runs it."""

    name: str

    def build_generator(self, task: Any, args: Any) -> Generator:
        """Return a generator with these options.

        Args:
            task: the task of the model, with its dictionary, its layout and the search options that fairseq lacks.
            args: fairseq's `GenerationConfig`.

        Raises:
            UserError: naming every option that the engine does not support.
        """


_OPENERS: Mapping[str, Callable[[Path], Engine]] = {"ctranslate2": open_ctranslate2, "onnx": open_onnx}


def open_engine(cfg: DictConfig, task: FairseqTask, device: str) -> Engine | None:
    """Open the folder of an engine, if ``--path`` names one, and set the layout of the task.

    Args:
        cfg: fairseq's configuration.
        task: the task of the model.
        device: the device of the search.

    Returns:
        The engine, or None if ``--path`` does not name the folder of one.

    Raises:
        UserError: if the engine is not installed, or options contradict the folder.
    """
    folder = Path(cfg.common_eval.path)
    if (name := engine_of(folder)) is None:
        return None
    parts = [path for path in folder.iterdir() if not path.is_dir()]
    check_parts(parts)
    check_files(*parts)
    problems = [
        f"--{option} is for models that PyTorch runs: {folder} is one for {name}, and has the precision that s2sft "
        "export --quantize gave it"
        for option in ("fp16", "bf16")
        if cfg.common[option]
    ]
    if device != "cpu":
        problems.append(f"{folder} is a model for {name}, which runs on the CPU: give --cpu")
    if problems:
        raise UserError.of(problems)
    engine = _OPENERS[name](folder)  # checks the sizes of the configuration, which the next lines use
    state = as_checkpoint(read_config(folder), {})
    task.load_state_dict(state["task_state"])
    config = str(folder / CONFIG)
    with about(config):
        build_without_weights(task, config, state)  # sets the layout of sources and targets
    return engine


def build_generator(task: Any, models: Any, args: Any) -> Any:
    """Return the generator of the engine, if there is one in place of the models, or else of the task."""
    engine = models[0]
    return engine.build_generator(task, args) if isinstance(engine, Engine) else task.build_generator(models, args)


def runs_pytorch(models: Any) -> bool:
    """Return whether these are PyTorch models, not an engine."""
    return not isinstance(models[0], Engine)
