"""fairseq loads checkpoints without trusting them: no code runs from a pickle, from a configuration, or by a variable.

Every door goes through the two places where fairseq's `checkpoint_utils` calls `torch.load`.
"""

import functools
import logging
import os
import types
from collections.abc import Callable
from typing import Any, BinaryIO

import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer
from torch.serialization import safe_globals

from s2sft_fairseq.checkpoints.finite_weights import check_finite
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint, register_safe_types, types_between_ranks
from s2sft_fairseq.checkpoints.trusted_config import FROM_FAIRSEQ, check_config, not_built

logger = logging.getLogger(__name__)

_SWITCHES_SAFETY_OFF = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


def _load(file: BinaryIO, map_location: object = None) -> dict[str, Any]:
    """Stand in for `torch.load` where fairseq reads a checkpoint that it opened; onto the CPU, as fairseq wants it."""
    state = load_checkpoint(file.name)
    check_config(file.name, state)
    if isinstance(weights := state.get("model"), dict):
        check_finite(file.name, weights)
    return state


def _torch_with_safe_load() -> types.ModuleType:
    """PyTorch as a module of its own with `_load`; PyTorch itself is left as it is."""
    module = types.ModuleType("torch")
    module.__dict__.update(vars(torch))
    module.load = _load  # type: ignore[attr-defined]
    return module


def _from_own_options(load_for_training: Callable) -> Callable:
    """A training is built from its command line, and takes weights and counts from the file, but no configuration."""

    @functools.wraps(load_for_training)
    def load_checkpoint(*args: object, **options: object) -> object:
        with not_built(*FROM_FAIRSEQ):
            return load_for_training(*args, **options)

    return load_checkpoint


def _for_given_task(load_ensemble: Callable) -> Callable:
    """Where the task is there already it is the user's, and the file's is not built."""

    @functools.wraps(load_ensemble)
    def load_model_ensemble_and_task(
        filenames: list[str],
        arg_overrides: dict[str, Any] | None = None,
        task: object = None,
        *args: object,
        **options: object,
    ) -> tuple:
        with not_built(*(() if task is None else ("task",))):
            return load_ensemble(filenames, arg_overrides, task, *args, **options)

    return load_model_ensemble_and_task


def _between_ranks(broadcast: Callable) -> Callable:
    @functools.wraps(broadcast)
    def broadcast_object(*args: object, **options: object) -> object:
        with safe_globals(types_between_ranks()):
            return broadcast(*args, **options)

    return broadcast_object


def keep_safe_loading_on() -> None:
    """Take the variable away by which `torch.load` would run code; processes started later have none either."""
    if os.environ.pop(_SWITCHES_SAFETY_OFF, None):
        logger.warning(f"{_SWITCHES_SAFETY_OFF} is ignored: no checkpoint may run code here")


def apply() -> None:
    """Register the safe types, and check what fairseq loads before it builds anything from it."""
    keep_safe_loading_on()
    register_safe_types()
    checkpoint_utils.torch = _torch_with_safe_load()
    Trainer.load_checkpoint = _from_own_options(Trainer.load_checkpoint)
    checkpoint_utils.load_model_ensemble_and_task = _for_given_task(checkpoint_utils.load_model_ensemble_and_task)
    distributed_utils._broadcast_object_slow = _between_ranks(distributed_utils._broadcast_object_slow)
