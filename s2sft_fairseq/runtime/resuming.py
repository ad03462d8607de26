"""Compare the options of a training with those of the checkpoint from which it resumes.

Every option that differs is named in the log. One with which the training would be another one is refused, unless the
option that forgets the state in question is given.
"""

import argparse
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.trainer import Trainer
from omegaconf import DictConfig, OmegaConf

from s2sft_fairseq.errors import UserError, as_option

logger = logging.getLogger(__name__)

_SECTIONS = (
    *("common", "distributed_training", "dataset", "optimization", "checkpoint", "ema"),
    *("task", "model", "criterion", "optimizer", "lr_scheduler"),
)
# Where a training starts from and how its processes find each other; nothing of it holds for the next command.
_OF_A_COMMAND = (
    *("restore_file", "continue_once", "finetune_from_model", "optimizer_overrides", "pretrained", "random_init"),
    *("reset_optimizer", "reset_lr_scheduler", "reset_meters", "reset_dataloader", "save_dir"),
    *("distributed_rank", "distributed_init_method", "distributed_port", "device_id", "distributed_no_spawn"),
    *("distributed_num_procs", "nprocs_per_node"),
)
_BATCHES = (
    *("max_tokens", "batch_size", "required_batch_size_multiple", "seed", "max_source_positions"),
    *("max_target_positions", "grouped_shuffling", "data", "train_subset"),
)
_NO_SETTINGS = {"_name", "lr", "tpu", "bf16", "fp16", "use_old_adam"}
"""Options in the section of an optimizer that are not settings of its state."""
_ADAPTERS = ("lora_rank", "lora_alpha", "lora_targets")


class Resets(NamedTuple):
    """The parts of a checkpoint that a training does not take."""

    optimizer: bool
    lr_scheduler: bool
    meters: bool
    dataloader: bool


class _Options(NamedTuple):
    """The options of a training: those of each section, and the resolved layout of its task."""

    sections: Mapping[str, Mapping[str, Any]]
    layout: Mapping[str, Any]

    @classmethod
    def of(cls, cfg: Any, task_state: Mapping[str, Any] | None) -> "_Options":
        cfg = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True) if isinstance(cfg, DictConfig) else cfg
        sections = {name: _plain(cfg.get(name)) for name in _SECTIONS}
        return cls(sections, _plain((task_state or {}).get("layout")))

    def flat(self) -> dict[str, Any]:
        names = {name: value for section in self.sections.values() for name, value in section.items()}
        return {**names, **self.layout}


def _plain(section: Any) -> dict[str, Any]:
    section = vars(section) if isinstance(section, argparse.Namespace) else section
    if not isinstance(section, Mapping):
        return {}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in section.items()}


def compare(path: str, state: Mapping[str, Any], trainer: Trainer, resets: Resets) -> None:
    """Log the options that differ from those of a checkpoint.

    Args:
        path: the checkpoint.
        state: its contents.
        trainer: the training that resumes.
        resets: what it does not take.

    Raises:
        UserError: listing the options with which the training would be another one.
    """
    if not state.get("cfg"):
        return  # a checkpoint of an early fairseq
    saved = _Options.of(state["cfg"], state.get("task_state"))
    now = _Options.of(trainer.cfg, trainer.task.state_dict())
    problems = [f"{text} ({way})" for text, way in _another_run(saved, now, trainer, resets, state)]
    if problems:
        heading = f"{path} is of another training: give its options, or another --save-dir, or what stands in brackets"
        raise UserError.of(problems, f"{heading}:")
    before, after = saved.flat(), now.flat()
    differing = [
        f"{as_option(name)} {after[name]} (was {before[name]})"
        for name in sorted(before.keys() & after.keys())
        if not name.startswith("_") and name not in _OF_A_COMMAND and before[name] != after[name]
    ]
    if differing:
        logger.info(f"options that differ from those of {path}: {', '.join(differing)}")


def _another_run(
    saved: _Options, now: _Options, trainer: Trainer, resets: Resets, state: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """Yield each option with which a training would be another one, and how to ask for that."""
    if not resets.optimizer:
        yield from _kinds(saved, now, ("task", "model", "criterion", "optimizer"), "--reset-optimizer")
        what_is_learned = getattr(trainer.task, "same_in_a_run", ())
        yield from _changes(saved.flat(), now.flat(), what_is_learned, "--reset-optimizer")
        architecture = [*_sizes(_kind(now, "model")), *_ADAPTERS]
        yield from _changes(saved.sections["model"], now.sections["model"], architecture, "--reset-optimizer")
    if not resets.optimizer and _kind(saved, "optimizer") == _kind(now, "optimizer"):
        # PyTorch's optimizers load their settings with their state, so that another value has no effect.
        overridden = str(trainer.cfg.checkpoint.optimizer_overrides)
        settings = sorted(now.sections["optimizer"].keys() - _NO_SETTINGS)
        settings = [name for name in settings if name not in overridden]
        yield from _changes(saved.sections["optimizer"], now.sections["optimizer"], settings, "--reset-optimizer")
    if not (resets.optimizer or resets.lr_scheduler):
        yield from _kinds(saved, now, ("lr_scheduler",), "--reset-lr-scheduler")
    if not (resets.optimizer or resets.meters):
        # The best value so far is one of this measure.
        measures = ("best_checkpoint_metric", "maximize_best_checkpoint_metric")
        yield from _changes(saved.sections["checkpoint"], now.sections["checkpoint"], measures, "--reset-meters")
        of_loss = sorted(now.sections["criterion"].keys() - {"_name", "report_accuracy"})
        yield from _changes(saved.sections["criterion"], now.sections["criterion"], of_loss, "--reset-meters")
    if trainer.cfg.ema.store_ema and "ema" not in state["extra_state"]:
        yield "--store-ema is True, but the checkpoint has no moving average", "--finetune-from-model"
    place = state["extra_state"]["train_iterator"]
    if not resets.dataloader and place["iterations_in_epoch"] and "read" not in place:
        # An earlier version saved how many batches were read, not which examples.
        yield from _changes(saved.flat(), now.flat(), _BATCHES, "--reset-dataloader")


def _kind(options: _Options, section: str) -> str | None:
    """Return the choice of a section, such as the optimizer; of an architecture its model."""
    name = options.sections[section].get("_name")
    return ARCH_MODEL_NAME_REGISTRY.get(name, name) if section == "model" else name


def _sizes(model: str | None) -> list[str]:
    """Return the options of a model that are its sizes."""
    from s2sft_fairseq.models.model_options import default_sizes

    config = MODEL_DATACLASS_REGISTRY.get(model)
    return [] if config is None else list(default_sizes(config))


def _kinds(saved: _Options, now: _Options, sections: tuple[str, ...], way: str) -> Iterator[tuple[str, str]]:
    """Yield the sections in which something else is chosen."""
    for section in sections:
        before, after = _kind(saved, section), _kind(now, section)
        if before != after and None not in (before, after):
            option = "--arch" if section == "model" else as_option(section)
            yield f"{option} is {after}, but was {before}", way


def _changes(
    saved: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str], way: str
) -> Iterator[tuple[str, str]]:
    """Yield the options among `names` that differ."""
    for name in names:
        if name in saved and name in now and saved[name] != now[name]:
            yield f"{as_option(name)} is {now[name]}, but was {saved[name]}", way
