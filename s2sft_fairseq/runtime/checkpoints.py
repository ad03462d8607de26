"""Patches of how fairseq loads and saves checkpoints.

Loading: no code runs from a pickle, from a configuration, or by a variable of the environment, and a bad file is
reported by its name. Every load goes through the two places where fairseq's `checkpoint_utils` calls `torch.load`.

Saving: `s2sft_fairseq.checkpoints.saving` in place of fairseq's, in a folder that no other training uses.
"""

import logging
import os
import re
import types
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
from fairseq import checkpoint_utils, models
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer
from torch.serialization import safe_globals

from s2sft_fairseq.checkpoints.finite_weights import check_finite
from s2sft_fairseq.checkpoints.model_folder import checkpoint_file, what_it_is
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint, register_safe_types, types_between_ranks
from s2sft_fairseq.checkpoints.saving import copy_checkpoint, save_checkpoint
from s2sft_fairseq.checkpoints.trusted_config import FROM_FAIRSEQ, check_config, not_built
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import locked, remove_temporary
from s2sft_fairseq.runtime import Function, wrap

logger = logging.getLogger(__name__)

_SWITCHES_SAFETY_OFF = "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"
_LAST = "checkpoint_last.pt"
"""What ``--restore-file`` is by default; it is then looked for in ``--save-dir``."""
_CHECKPOINT = re.compile(r"(checkpoint.*|crash)\.pt")
_locks: dict[Path, AbstractContextManager[Any]] = {}  # of the folders that this process saves to


def install() -> None:
    """Load safely, explain bad files, save whole files, and lock the folder of the checkpoints."""
    keep_safe_loading_on()
    register_safe_types()
    checkpoint_utils.torch = _torch_with_safe_load()
    wrap(checkpoint_utils, "load_checkpoint_to_cpu", _load_to_cpu)
    wrap(checkpoint_utils, "load_model_ensemble_and_task", _load_ensemble)
    wrap(checkpoint_utils, "load_checkpoint", _find_and_load)
    wrap(Trainer, "load_checkpoint", _load_for_training)
    wrap(distributed_utils, "_broadcast_object_slow", _broadcast)
    wrap(models, "build_model", _build_model)
    wrap(checkpoint_utils, "torch_persistent_save", _save)
    wrap(PathManager, "copy", _copy)
    wrap(checkpoint_utils, "verify_checkpoint_directory", _lock)
    wrap(distributed_utils, "call_main", _run)


def keep_safe_loading_on() -> None:
    """Take the variable away by which `torch.load` would run code; processes started later have none either."""
    if os.environ.pop(_SWITCHES_SAFETY_OFF, None):
        logger.warning(f"{_SWITCHES_SAFETY_OFF} is ignored: no checkpoint may run code here")


def _torch_with_safe_load() -> types.ModuleType:
    """Return PyTorch as a module of its own with `_load`; PyTorch itself is left as it is.

    fairseq/checkpoint_utils.py calls ``torch.load`` in ``load_checkpoint_to_cpu`` and ``load_ema_from_checkpoint``.
    """
    module = types.ModuleType("torch")
    module.__dict__.update(vars(torch))
    module.load = _load  # type: ignore[attr-defined]
    return module


def _load(file: BinaryIO, map_location: object = None) -> dict[str, Any]:
    """Stand in for `torch.load` where fairseq reads a checkpoint that it opened; onto the CPU, as fairseq wants it."""
    state = load_checkpoint(file.name)
    check_config(file.name, state)
    if isinstance(weights := state.get("model"), dict):
        check_finite(file.name, weights)
    return state


def _load_to_cpu(load: Function, path: str, *args: Any, **options: Any) -> dict[str, Any]:
    """Patch ``load_checkpoint_to_cpu`` of fairseq/checkpoint_utils.py: tell a bad file from a bug.

    fairseq raises whatever a file without a model or a configuration leads to.
    """
    path = os.fspath(checkpoint_file(path))
    try:
        return load(path, *args, **options)
    except UserError:  # of `_load`
        raise
    except Exception:
        state = load_checkpoint(PathManager.get_local_path(path))
        if "model" not in state or not (state.get("cfg") or state.get("args")):
            entries = ", ".join(list(map(str, state))[:5]) or "nothing"
            raise UserError(
                f"{path}: not a fairseq checkpoint, which has a 'model' and a 'cfg'; this file holds {entries}"
                + (", ..." if len(state) > 5 else "")
            ) from None
        raise


def _load_ensemble(
    load: Function,
    filenames: list[str],
    arg_overrides: dict[str, Any] | None = None,
    task: object = None,
    *args: Any,
    **options: Any,
) -> tuple[Any, ...]:
    """Patch ``load_model_ensemble_and_task`` of fairseq/checkpoint_utils.py.

    A task that the caller gives is the user's: that of the file is not built, and not looked at. A missing file is the
    user's mistake, with the option that names it.
    """
    with not_built(*(() if task is None else ("task",))):
        try:
            return load(filenames, arg_overrides, task, *args, **options)
        except OSError as error:
            if str(error).startswith("Model file not found"):
                raise UserError(f"{error} (--path)") from None
            raise


def _find_and_load(load: Function, cfg: Any, trainer: Any, **options: Any) -> tuple[Any, ...]:
    """Patch ``load_checkpoint`` of fairseq/checkpoint_utils.py, with which a training begins.

    fairseq starts from scratch, with one line in the log, where a checkpoint that was asked for is missing or is a
    folder; a model folder stands for its weights here.
    """
    for name in ("restore_file", "finetune_from_model", "continue_once"):
        if getattr(cfg, name):
            setattr(cfg, name, os.fspath(checkpoint_file(getattr(cfg, name))))
    suffix = f"{trainer.checkpoint_suffix or ''}.pt"  # of a shard
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
    return load(cfg, trainer, **options)


def _load_for_training(
    load: Function, trainer: Trainer, filename: str, reset_optimizer: bool = False, *args: Any, **options: Any
) -> dict[str, Any] | None:
    """Patch ``Trainer.load_checkpoint`` of fairseq/trainer.py. The steps, in this order:

    1. A training is built from its command line, and takes weights and counts from the file, but no configuration: that
       of the file is not looked at.
    2. A resumed training gives the task its saved state. fairseq saves it, and hands it back only when it generates.
       It may go on in another precision, see `_rename_optimizer`.
    3. A training that would begin with random weights, because no option says what to begin with, is refused. fairseq
       knows here, and not before, whether there is a checkpoint.
    """
    with not_built(*FROM_FAIRSEQ), _handed_over_to(trainer, resumed=not reset_optimizer):
        extra_state = load(trainer, filename, reset_optimizer, *args, **options)
    if extra_state is None:
        _refuse_random_weights(trainer, filename)
    return extra_state


@contextmanager
def _handed_over_to(trainer: Trainer, resumed: bool) -> Iterator[None]:
    """Within it, a checkpoint that is loaded gives its state to the trainer's task, and its moments to the optimizer;
    not to a new training's, which only begins with its weights."""
    load = checkpoint_utils.load_checkpoint_to_cpu

    def load_and_hand_over(*args: Any, **options: Any) -> dict[str, Any]:
        state = load(*args, **options)
        if "task_state" in state:
            trainer.task.load_state_dict(state["task_state"])
        if history := state.get("optimizer_history"):
            _rename_optimizer(history[-1], trainer.cfg)
        return state

    if resumed:
        checkpoint_utils.load_checkpoint_to_cpu = load_and_hand_over
    try:
        yield
    finally:
        checkpoint_utils.load_checkpoint_to_cpu = load


def _rename_optimizer(last: dict[str, Any], cfg: Any) -> None:
    """Give the optimizer of a checkpoint the name that it has in this training, where only the precision differs.

    fairseq compares names of classes, and each precision has its own around the optimizer: it would not go on with
    ``--bf16``, the default on GPUs, where a training began in float32. The moments of ours have 32 bits in all.
    """
    names = {
        "MemoryEfficientFP16Optimizer": cfg.common.memory_efficient_fp16 or cfg.common.memory_efficient_bf16,
        "FP16Optimizer": cfg.common.fp16 or cfg.common.bf16,
        "AMPOptimizer": cfg.common.amp,
        "FusedAdamW": True,
    }
    name, saved = next(name for name, is_its in names.items() if is_its), last.get("optimizer_name")
    if saved in names and saved != name and cfg.optimizer._name == "fused_adamw" and not cfg.optimization.use_bmuf:
        logger.info(f"the training goes on in another precision: with {name} in place of {saved}")
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
    """Patch ``build_model`` of fairseq/models/__init__.py: keep the options that a model settles when it is built.

    fairseq gives the model a copy of its options, and saves the original: a checkpoint would hold neither the sizes
    that came from a pretrained encoder, nor that its folder is no longer needed.
    """
    model = build(cfg, task, from_checkpoint)
    if not from_checkpoint:
        for name, value in getattr(model, "settled_options", {}).items():
            setattr(cfg, name, value)
    return model


def _save(save: Function, obj: Any, filename: str, async_write: bool = False) -> None:
    """Patch ``torch_persistent_save`` of fairseq/checkpoint_utils.py: write local files whole.

    fairseq writes a second time into the file that it could not finish, and its caller ends with exit status 0.
    """
    if PathManager.supports_rename(filename):
        save_checkpoint(obj, filename)
    else:
        save(obj, filename, async_write)


def _copy(copy: Function, src_path: str, dst_path: str, overwrite: bool = False) -> str | bool:
    """Patch ``PathManager.copy`` of fairseq/file_io.py: copy local files whole.

    fairseq would copy a damaged file over ``checkpoint_best.pt`` and ``checkpoint_last.pt``.
    """
    if not (PathManager.supports_rename(src_path) and PathManager.supports_rename(dst_path)):
        return copy(src_path, dst_path, overwrite=overwrite)
    copy_checkpoint(src_path, dst_path)
    return True


def _lock(verify: Function, save_dir: str) -> None:
    """Patch ``verify_checkpoint_directory`` of fairseq/checkpoint_utils.py: lock the folder of the checkpoints.

    fairseq verifies it once, in the one process of a training that saves them, and lets two trainings share it.
    """
    verify(save_dir)
    folder = Path(save_dir).resolve()
    if folder not in _locks and PathManager.supports_rename(save_dir):
        lock = locked(folder)
        lock.__enter__()
        _locks[folder] = lock
        remove_temporary(folder, _CHECKPOINT.fullmatch)


def _run(call: Function, cfg: Any, main: Function, **options: Any) -> None:
    """Patch ``call_main`` of fairseq/distributed/utils.py, which runs a command: at its end unlock the folder of the
    checkpoints, and write the model folder of a training."""
    if cfg.checkpoint.write_checkpoints_asynchronously:
        raise UserError("--save-async must be left out: errors of the threads that save would go unnoticed")
    trains = main.__module__ == "fairseq_cli.train"
    ranks = cfg.distributed_training
    if trains and ranks.distributed_init_method is None:
        distributed_utils.infer_init_method(ranks)  # as `call` would
    is_first = ranks.distributed_rank == 0  # `call` unsets it where it starts a process for each GPU
    pretrained = getattr(cfg.model, "pretrained", None) if trains else None  # the model takes it out of the options
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
        # Here, for models need fairseq patched before they are imported.
        from s2sft_fairseq.models.model_folder import export_after_training

        export_after_training(Path(cfg.checkpoint.save_dir), cfg.checkpoint.checkpoint_suffix, pretrained)
