"""Patches of how fairseq loads and saves checkpoints.

Loading: a pickle or a configuration runs no code, an environment variable cannot change this, and errors name the bad
file. Every load passes one of the two places where fairseq's `checkpoint_utils` calls `torch.load`.

Saving: `s2sft_fairseq.checkpoints.saving` replaces fairseq's code, and locks the folder against other trainings.
"""

import logging
import os
import re
import types
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from fairseq import checkpoint_utils, models
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer
from omegaconf.errors import OmegaConfBaseException
from torch.serialization import safe_globals

from s2sft_fairseq.checkpoints.finite_weights import check_finite
from s2sft_fairseq.checkpoints.model_folder import WEIGHTS as MODEL_WEIGHTS
from s2sft_fairseq.checkpoints.model_folder import checkpoint_file, what_it_is
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint, register_safe_types, types_between_ranks
from s2sft_fairseq.checkpoints.saving import copy_checkpoint, save_checkpoint
from s2sft_fairseq.checkpoints.training_state import check_moments, check_training_state
from s2sft_fairseq.checkpoints.trusted_config import FROM_FAIRSEQ, check_config, clear_paths, not_built
from s2sft_fairseq.errors import UserError, about, user_error_text
from s2sft_fairseq.files import locked, remove_temporary
from s2sft_fairseq.runtime import Function, wrap
from s2sft_fairseq.runtime.data import PlaceError
from s2sft_fairseq.runtime.parts import check_parts
from s2sft_fairseq.runtime.resuming import Resets, compare

logger = logging.getLogger(__name__)

_SWITCHES_SAFETY_OFF = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
_LAST = "checkpoint_last.pt"
"""The default of ``--restore-file``, a file in ``--save-dir``."""
_CHECKPOINT = re.compile(r"(checkpoint.*|crash)\.pt")
_locks: dict[Path, AbstractContextManager[Any]] = {}  # the locks of the folders that this process saves to


def install() -> None:
    """Load safely, explain bad files, save atomically, and lock the folder of the checkpoints."""
    keep_safe_loading_on()
    register_safe_types()
    checkpoint_utils.torch = _torch_with_safe_load()
    wrap(checkpoint_utils, "load_checkpoint_to_cpu", _load_to_cpu)
    wrap(checkpoint_utils, "load_model_ensemble_and_task", _load_ensemble)
    wrap(checkpoint_utils, "load_checkpoint", _find_and_load)
    wrap(Trainer, "load_checkpoint", _load_for_training)
    wrap(Trainer, "cumulative_training_time", _seconds)
    wrap(distributed_utils, "_broadcast_object_slow", _broadcast)
    wrap(models, "build_model", _build_model)
    wrap(checkpoint_utils, "torch_persistent_save", _save)
    wrap(PathManager, "copy", _copy)
    wrap(checkpoint_utils, "verify_checkpoint_directory", _lock)
    wrap(distributed_utils, "call_main", _run)


def keep_safe_loading_on() -> None:
    """Remove the environment variable with which `torch.load` runs code, also for child processes."""
    if os.environ.pop(_SWITCHES_SAFETY_OFF, None):
        logger.warning(f"{_SWITCHES_SAFETY_OFF} is ignored: no checkpoint may run code here")


def _torch_with_safe_load() -> types.ModuleType:
    """Return a copy of the module `torch` with `_load`; PyTorch itself does not change.

    fairseq/checkpoint_utils.py calls ``torch.load`` in ``load_checkpoint_to_cpu`` and ``load_ema_from_checkpoint``.
    """
    module = types.ModuleType("torch")
    module.__dict__.update(vars(torch))
    module.load = _load  # type: ignore[attr-defined]
    return module


def _load(file: BinaryIO, map_location: object = None) -> dict[str, Any]:
    """Replace `torch.load` where fairseq reads a checkpoint that it opened. As in fairseq, load onto the CPU."""
    state = load_checkpoint(file.name)
    check_config(file.name, state)
    clear_paths(file.name, state)
    if isinstance(weights := state.get("model"), dict):
        check_finite(file.name, weights)
    return state


def _load_to_cpu(load: Function, path: str, *args: Any, **options: Any) -> Mapping[str, Any]:
    """Patch ``load_checkpoint_to_cpu`` of fairseq/checkpoint_utils.py: report a bad file as a user error.

    For a file without a model or with a strange configuration, fairseq fails with an unrelated exception.
    """
    path = os.fspath(checkpoint_file(path))
    failure = None
    try:
        state = load(path, *args, **options)
    except (UserError, MemoryError):
        raise
    except Exception as error:
        failure, state = error, load_checkpoint(PathManager.get_local_path(path))
    if not ("model" in state and (state.get("cfg") or state.get("args"))):
        entries = ", ".join(list(map(str, state))[:5]) or "nothing"
        raise UserError(
            f"{path}: not a fairseq checkpoint, which has a 'model' and a 'cfg'; this file holds {entries}"
            + (", ..." if len(state) > 5 else "")
        )
    if failure is not None:
        what = f"{type(failure).__name__}: {failure}"
        raise UserError(f"{path}: fairseq cannot read its configuration: {what}") from failure
    return state


def _load_ensemble(
    load: Function,
    filenames: list[str],
    arg_overrides: dict[str, Any] | None = None,
    task: object = None,
    *args: Any,
    **options: Any,
) -> tuple[Any, ...]:
    """Patch ``load_model_ensemble_and_task`` of fairseq/checkpoint_utils.py.

    If the caller gives a task, the file's task is neither built nor checked. A missing file is a user error that names
    the option, and one with options of other types is a user error that names it.
    """
    names = ", ".join(filenames)
    with about(names), not_built(*(() if task is None else ("task",))):
        try:
            return load(filenames, arg_overrides, task, *args, **options)
        except OSError as error:
            if str(error).startswith("Model file not found"):
                raise UserError(f"{error} (--path)") from None
            raise
        except OmegaConfBaseException as error:
            raise UserError(f"{names}: an option has another type: {error}") from error


def _find_and_load(load: Function, cfg: Any, trainer: Any, **options: Any) -> tuple[Any, ...]:
    """Patch ``load_checkpoint`` of fairseq/checkpoint_utils.py, which a training calls first.

    If a requested checkpoint is missing or a folder, fairseq starts from scratch, with one line in the log. This patch
    raises a user error, and takes the weights of a model folder.
    """
    for name in ("restore_file", "finetune_from_model", "continue_once"):
        if getattr(cfg, name):
            setattr(cfg, name, os.fspath(checkpoint_file(getattr(cfg, name))))
    suffix = f"{trainer.checkpoint_suffix or ''}.pt"  # sharded checkpoints have a suffix
    last = os.path.join(cfg.save_dir, _LAST).replace(".pt", suffix)
    asked_for = {"--finetune-from-model": cfg.finetune_from_model}
    if cfg.restore_file != _LAST:
        asked_for["--restore-file"] = cfg.restore_file.replace(".pt", suffix)
    elif not PathManager.exists(last):
        asked_for["--continue-once"] = cfg.continue_once
    else:
        asked_for["--save-dir"] = last
    for option, path in asked_for.items():
        if path is None or PathManager.isfile(path):
            continue
        if PathManager.exists(path):
            raise UserError(f"{option} {path}: a checkpoint file is needed, but this is {what_it_is(Path(path))}")
        raise UserError(f"{option} {path}: no such checkpoint file (from {os.getcwd()})")
    try:
        extra_state, data = load(cfg, trainer, **options)
    except PlaceError as error:
        *_, path = (path for path in asked_for.values() if path is not None)
        raise UserError(f"{path}: {error}") from None
    done, most = data.next_epoch_idx - 1, trainer.cfg.optimization.max_epoch
    if 0 < most <= done:
        logger.warning(f"nothing is left to train: {done:,} epochs are done, and --max-epoch is {most:,}")
    return extra_state, data


def _load_for_training(
    load: Function,
    trainer: Trainer,
    filename: str,
    reset_optimizer: bool = False,
    reset_lr_scheduler: bool = False,
    optimizer_overrides: dict[str, Any] | None = None,
    reset_meters: bool = False,
) -> dict[str, Any] | None:
    """Patch ``Trainer.load_checkpoint`` of fairseq/trainer.py.

    The steps, in this order:

    1. The configuration of a training comes from its command line. The file provides weights and counts; its
       configuration is compared, see `resuming.compare`.
    2. If a training is resumed, its state is checked, and the task gets its saved state. fairseq saves this state, but
       restores it only for generation. The training may continue in another precision, see `_rename_optimizer`.
    3. A training that would begin with random weights, because no option gives a checkpoint, is refused. Only here
       fairseq knows whether there is a checkpoint.
    """
    is_new = filename == trainer.cfg.checkpoint.finetune_from_model or Path(filename).name == MODEL_WEIGHTS
    resets = Resets(reset_optimizer, reset_lr_scheduler, reset_meters, trainer.cfg.checkpoint.reset_dataloader)
    others = (reset_lr_scheduler, optimizer_overrides, reset_meters)
    with not_built(*FROM_FAIRSEQ), _handed_over_to(trainer, None if is_new else resets), _explained(filename, trainer):
        extra_state = load(trainer, filename, reset_optimizer, *others)
    if extra_state is None:
        _refuse_random_weights(trainer, filename)
    elif not (is_new or reset_optimizer):
        check_moments(filename, _torch_optimizer(trainer))
    return extra_state


def _torch_optimizer(trainer: Trainer) -> torch.optim.Optimizer:
    """Return PyTorch's optimizer, which that of a training in 16 bits wraps."""
    optimizer = trainer.optimizer
    for name in ("fp32_optimizer", "wrapped_optimizer"):
        optimizer = getattr(optimizer, name, optimizer)
    return optimizer.optimizer


def _seconds(measure: Function, trainer: Trainer) -> float:
    """Patch ``Trainer.cumulative_training_time`` of fairseq/trainer.py, which checkpoints keep: always a number.

    With several ranks fairseq's is a tensor, the mean over the ranks.
    """
    return float(measure(trainer))


@contextmanager
def _explained(filename: str, trainer: Trainer) -> Iterator[None]:
    """Within the block, an error that the contents of a checkpoint cause is a user error that names the file."""
    several_ranks = getattr(trainer, "data_parallel_world_size", 1) > 1
    try:
        yield
    except (UserError, OSError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        is_of_another_rank = several_ranks and isinstance(error, RuntimeError)  # a lost connection
        if is_of_another_rank or user_error_text(error):
            raise
        cause = error.__context__ if str(error).startswith("Cannot load model parameters") else None
        what = f"{type(cause or error).__name__}: {cause or error}"
        raise UserError(f"{filename}: the training cannot be resumed from it: {what}") from error


@contextmanager
def _handed_over_to(trainer: Trainer, resets: Resets | None) -> Iterator[None]:
    """Within the block, loading a checkpoint checks and compares its state, and restores that of the task.

    Args:
        trainer: the training.
        resets: what the training does not take; None: a new training, which takes only the weights.
    """
    load = checkpoint_utils.load_checkpoint_to_cpu

    def load_and_hand_over(path: str, *args: Any, **options: Any) -> dict[str, Any]:
        state = load(path, *args, **options)
        if resets is None:
            return state
        needed = {"with_optimizer": not resets.optimizer, "with_meters": not resets.meters}
        check_training_state(path, state, **needed)
        compare(path, state, trainer, resets)
        if resets.optimizer:
            return state
        if "task_state" in state:
            trainer.task.load_state_dict(state["task_state"])
        _rename_optimizer(state["optimizer_history"][-1], trainer.cfg)
        return state

    checkpoint_utils.load_checkpoint_to_cpu = load_and_hand_over
    try:
        yield
    finally:
        checkpoint_utils.load_checkpoint_to_cpu = load


def _rename_optimizer(last: dict[str, Any], cfg: Any) -> None:
    """Rename the optimizer of a checkpoint to its name in this training, if only the precision differs.

    fairseq compares class names, and each precision wraps the optimizer in another class. So it would not resume a
    training in float32 with ``--bf16``, the default on GPUs. The moments of ``fused_adamw`` have 32 bits in every
    precision.
    """
    names = {
        "MemoryEfficientFP16Optimizer": cfg.common.memory_efficient_fp16 or cfg.common.memory_efficient_bf16,
        "FP16Optimizer": cfg.common.fp16 or cfg.common.bf16,
        "AMPOptimizer": cfg.common.amp,
        "FusedAdamW": True,
    }
    name, saved = next(name for name, is_its in names.items() if is_its), last.get("optimizer_name")
    if saved in names and saved != name and cfg.optimizer._name == "fused_adamw" and not cfg.optimization.use_bmuf:
        logger.info(f"the training continues in another precision: with {name} instead of {saved}")
        last["optimizer_name"] = name


def _refuse_random_weights(trainer: Trainer, filename: str) -> None:
    model = trainer.get_model()
    if not getattr(model, "has_random_weights", False):
        return
    count = sum(parameter.numel() for parameter in model.parameters())
    if not getattr(trainer.cfg.model, "random_init", False) and not getattr(trainer.task, "may_begin_at_random", False):
        raise UserError(
            f"--pretrained is needed: a converted encoder or a checkpoint to begin with. Without it, and without a "
            f"checkpoint to resume ({filename} does not exist), {count:,} random weights would be trained; give "
            "--random-init if that is what you want"
        )
    logger.info(f"the training begins with {count:,} random weights")


def _broadcast(broadcast: Function, *args: Any, **options: Any) -> object:
    """Patch ``_broadcast_object_slow`` of fairseq/distributed/utils.py: its ``torch.load`` needs further types."""
    with safe_globals(types_between_ranks()):
        return broadcast(*args, **options)


def _build_model(build: Function, cfg: Any, task: Any, from_checkpoint: bool = False) -> Any:
    """Patch ``build_model`` of fairseq/models/__init__.py: store the options that a model sets when it is built.

    A model that does not read the batches of the task is refused.

    fairseq passes a copy of the options to the model, and saves the original. So a checkpoint would have neither the
    sizes of the pretrained encoder, nor the information that its folder is no longer needed.
    """
    if task is not None:
        check_parts(task, arch=getattr(cfg, "_name", None) or getattr(cfg, "arch", None))
    model = build(cfg, task, from_checkpoint)
    if not from_checkpoint:
        for name, value in getattr(model, "settled_options", {}).items():
            setattr(cfg, name, value)
    return model


def _save(save: Function, obj: Any, filename: str, async_write: bool = False) -> None:
    """Patch ``torch_persistent_save`` of fairseq/checkpoint_utils.py: write local files atomically.

    If writing fails, fairseq writes into the incomplete file again, and its caller ends with exit status 0.
    """
    if PathManager.supports_rename(filename):
        save_checkpoint(obj, filename)
    else:
        save(obj, filename, async_write)


def _copy(copy: Function, src_path: str, dst_path: str, overwrite: bool = False) -> str | bool:
    """Patch ``PathManager.copy`` of fairseq/file_io.py: copy local files atomically.

    fairseq would replace ``checkpoint_best.pt`` and ``checkpoint_last.pt`` by a damaged file.
    """
    if not (PathManager.supports_rename(src_path) and PathManager.supports_rename(dst_path)):
        return copy(src_path, dst_path, overwrite=overwrite)
    copy_checkpoint(src_path, dst_path)
    return True


def _lock(verify: Function, save_dir: str) -> None:
    """Patch ``verify_checkpoint_directory`` of fairseq/checkpoint_utils.py: lock the folder of the checkpoints.

    fairseq calls it once, in the process of a training that saves checkpoints, and lets two trainings share a folder.
    """
    verify(save_dir)
    folder = Path(save_dir).resolve()
    if folder not in _locks and PathManager.supports_rename(save_dir):
        lock = locked(folder)
        lock.__enter__()
        _locks[folder] = lock
        remove_temporary(folder, _CHECKPOINT.fullmatch)


def _run(call: Function, cfg: Any, main: Function, **options: Any) -> None:
    """Patch ``call_main`` of fairseq/distributed/utils.py, which runs a command.

    After a training, write its model folder. After any command, unlock the folder of the checkpoints.
    """
    if cfg.checkpoint.write_checkpoints_asynchronously:
        raise UserError("--save-async must be left out: errors of the threads that save would go unnoticed")
    trains = main.__module__ == "fairseq_cli.train"
    ranks = cfg.distributed_training
    if trains and ranks.distributed_init_method is None:
        distributed_utils.infer_init_method(ranks)  # as `call` does
    is_first = ranks.distributed_rank == 0  # `call` unsets it if it starts a process for each GPU
    pretrained = getattr(cfg.model, "pretrained", None) if trains else None  # the model removes it from the options
    verify = checkpoint_utils.verify_checkpoint_directory
    if cfg.checkpoint.no_save:  # nothing to lock
        checkpoint_utils.verify_checkpoint_directory = verify.__wrapped__
    try:
        call(cfg, main, **options)
        if trains and is_first:
            _write_model_folder(cfg, pretrained)
    finally:
        checkpoint_utils.verify_checkpoint_directory = verify
        while _locks:
            _locks.popitem()[1].__exit__(None, None, None)


def _write_model_folder(cfg: Any, pretrained: str | None) -> None:
    is_ours = not getattr(cfg.model, "no_model_folder", True)
    if is_ours and not cfg.checkpoint.no_save:
        # Imported here, because fairseq must be patched before models are imported.
        from s2sft_fairseq.models.model_folder import export_after_training

        export_after_training(Path(cfg.checkpoint.save_dir), cfg.checkpoint.checkpoint_suffix, pretrained)
