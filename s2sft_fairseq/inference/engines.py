"""Other programs than PyTorch that run an exported model in a search.

An engine stands where the models of a search stand. Its folder is a model folder whose weights are in the engine's own
format; the task, the tokenizer, batches and files are the same as ever. To add one: a class with the attributes of
`Engine`, its name in `_OPENERS` and in `checkpoints.model_folder.ENGINES`, and what writes its folder.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from s2sft_fairseq.checkpoints.model_folder import as_checkpoint, engine_of, read_config
from s2sft_fairseq.checksums import check_files
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.ctranslate2_engine import open_ctranslate2
from s2sft_fairseq.inference.onnx_engine import open_onnx

Hypotheses = list[list[dict[str, Any]]]


class Generator(Protocol):
    """Generates for a batch, as `SequenceGenerator` and fairseq's do."""

    symbols_to_strip_from_output: set[int]

    def generate(
        self, models: Any, sample: dict[str, Any], prefix_tokens: Tensor | None = None, constraints: Any = None
    ) -> Hypotheses:
        """Return for each sentence of ``net_input.src_tokens`` (N, S) its hypotheses, the best first."""


@runtime_checkable
class Engine(Protocol):
    """An exported model with the program that runs it."""

    name: str

    def build_generator(self, task: Any, args: Any) -> Generator:
        """Return what searches with these options.

        Args:
            task: of the model, with its dictionary, its layout and the options of search that fairseq lacks.
            args: fairseq's `GenerationConfig`.

        Raises:
            UserError: naming every option that the engine does not have.
        """


_OPENERS: Mapping[str, Callable[[Path], Engine]] = {"ctranslate2": open_ctranslate2, "onnx": open_onnx}


def open_engine(cfg: DictConfig, task: FairseqTask, device: str) -> Engine | None:
    """Open the folder of an engine, if ``--path`` is one, and settle the layout of the task.

    Args:
        cfg: fairseq's configuration.
        task: of the model.
        device: of the search.

    Raises:
        UserError: if the engine is not installed, or options contradict the folder.
    """
    folder = Path(cfg.common_eval.path)
    if (name := engine_of(folder)) is None:
        return None
    check_files(*folder.iterdir())
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
    state = as_checkpoint(read_config(folder), {})
    task.load_state_dict(state["task_state"])
    with torch.device("meta"):  # no weights: what the model's options mean for sources and targets
        task.build_model(OmegaConf.create(state["cfg"]["model"]), from_checkpoint=True)
    return _OPENERS[name](folder)


def build_generator(task: Any, models: Any, args: Any) -> Any:
    """Return what searches: the engine's, where an engine stands in place of the models, or else the task's."""
    engine = models[0]
    return engine.build_generator(task, args) if isinstance(engine, Engine) else task.build_generator(models, args)


def runs_pytorch(models: Any) -> bool:
    """Tell whether these are models of PyTorch."""
    return not isinstance(models[0], Engine)
