"""Save a checkpoint when SIGTERM, SIGUSR1 or Ctrl-C asks a training to end.

fairseq ends at once, and loses all updates since the last checkpoint. With this module, the training finishes the
current update and the validation that is due after it, saves ``checkpoint_last.pt``, and ends with a special exit
status. The same command resumes it, with the result of an uninterrupted training.

``status.json`` beside the checkpoints tells a scheduler how far the training is.
"""

import json
import logging
import multiprocessing
import os
import signal
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from fairseq_cli import train
from torch import distributed
from torch.multiprocessing.spawn import ProcessExitedException

from s2sft_fairseq.files import DiskError, write_whole
from s2sft_fairseq.runtime import Function, wrap
from s2sft_fairseq.runtime.lost_ranks import new_group
from s2sft_fairseq.signals import INTERRUPTED, STATUS, end, handled

logger = logging.getLogger(__name__)

STATUS_FILE = "status.json"


class _Asked:
    """The request to end."""

    number = 0
    """The number of the signal that this process received; 0: no signal."""
    group: Any = None
    """The group with which ranks exchange their signals on the CPU; created after the first update."""


def install() -> None:
    """Handle signals while a training runs, and end after the update in which one arrived."""
    wrap(distributed_utils, "call_main", _run)
    wrap(train, "train", _epoch)
    wrap(train, "validate_and_save", _validate_and_save)
    wrap(checkpoint_utils, "save_checkpoint", _save_with_status)


def _run(call: Function, cfg: Any, main: Function, **options: Any) -> None:
    """Patch ``call_main`` of fairseq/distributed/utils.py, which starts a process for each GPU.

    Pass signals on to these processes, and return their exit status.
    """
    if main.__module__ != train.__name__:
        return call(cfg, main, **options)
    _Asked.number, _Asked.group = 0, None
    with handled(_pass_on):
        try:
            call(cfg, main, **options)
        except ProcessExitedException as error:
            if error.exit_code in (STATUS, INTERRUPTED):
                raise SystemExit(error.exit_code) from None
            raise


def _pass_on(number: int, frame: FrameType | None) -> None:
    """Handle a signal before the first update, or in the process that started the others."""
    # Data loading workers are daemons, and end with their process.
    if ranks := [process for process in multiprocessing.active_children() if not process.daemon]:
        # Ctrl-C reaches all processes of a terminal anyway.
        for rank in ranks if number != signal.SIGINT else ():
            os.kill(rank.pid, number)  # type: ignore[arg-type]  # it has started
        return
    end(number, frame)


def _epoch(run: Function, *args: Any) -> Any:
    """Patch ``train`` of fairseq_cli/train.py: from here on, the training ends only after an update."""
    with handled(_ask):
        return run(*args)


def _ask(number: int, frame: FrameType | None) -> None:
    """Handle a signal during an update: record it. The second Ctrl-C ends the training at once."""
    if number == signal.SIGINT and _Asked.number == signal.SIGINT:
        raise KeyboardInterrupt
    _Asked.number = number
    again = "; once more: at once" if number == signal.SIGINT else ""
    logger.info(f"{signal.Signals(number).name}: the training ends after this update{again}")


def _validate_and_save(run: Function, cfg: Any, trainer: Any, task: Any, epoch_itr: Any, *args: Any) -> Any:
    """Patch ``validate_and_save`` of fairseq_cli/train.py, which runs after each update: save and end if asked.

    A validation that is due runs first, so that a resumed training validates at the same updates as an uninterrupted
    one.
    """
    losses, should_stop = run(cfg, trainer, task, epoch_itr, *args)
    most = cfg.optimization.max_epoch
    if should_stop or (most and epoch_itr.end_of_epoch() and epoch_itr.epoch >= most):
        _write_status(cfg.checkpoint, trainer, epoch_itr, "done")
    number = _agreed()
    if number and not should_stop:
        _save(cfg.checkpoint, trainer, epoch_itr, signal.Signals(number).name)
        raise SystemExit(INTERRUPTED if number == signal.SIGINT else STATUS)
    return losses, should_stop


def _agreed() -> int:
    """Return the signal that any rank received (the highest number), so that all end after the same update."""
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return _Asked.number
    if _Asked.group is None:
        # On the CPU, so that a GPU does not wait for it.
        _Asked.group = new_group(backend="gloo")
    number = torch.tensor(_Asked.number)
    distributed.all_reduce(number, op=distributed.ReduceOp.MAX, group=_Asked.group)
    return int(number)


def _save_with_status(save: Function, cfg: Any, trainer: Any, epoch_itr: Any, *args: Any) -> Any:
    """Patch ``save_checkpoint`` of fairseq/checkpoint_utils.py: also write ``status.json``."""
    saved = save(cfg, trainer, epoch_itr, *args)
    _write_status(cfg, trainer, epoch_itr, "to be continued")
    return saved


def _write_status(cfg: Any, trainer: Any, epoch_itr: Any, state: str) -> None:
    """Write ``status.json``, on the rank that writes the checkpoints.

    A disk that refuses it does not end the training: a status that is too old makes a scheduler start it once more.
    """
    if cfg.no_save or not trainer.is_data_parallel_master:
        return
    limits = trainer.cfg.optimization
    status = {
        "state": state,
        "updates": trainer.get_num_updates(),
        "max_update": limits.max_update or None,
        "epoch": epoch_itr.epoch,
        "max_epoch": limits.max_epoch or None,
    }
    text = json.dumps(status, indent=1) + "\n"
    try:
        write_whole(Path(cfg.save_dir) / STATUS_FILE, lambda path: path.write_text(text, encoding="utf-8"))
    except DiskError as error:
        logger.warning(error)


def _save(cfg: Any, trainer: Any, epoch_itr: Any, name: str) -> None:
    """Save ``checkpoint_last.pt``, even with ``--no-last-checkpoints``, but not with ``--no-save``."""
    unwanted, cfg.no_last_checkpoints = cfg.no_last_checkpoints, False
    try:
        checkpoint_utils.save_checkpoint(cfg, trainer, epoch_itr, None)
    finally:
        cfg.no_last_checkpoints = unwanted
    updates = trainer.get_num_updates()
    saved = "nothing is saved (--no-save)" if cfg.no_save else f"saved in {cfg.save_dir}: the same command resumes it"
    logger.info(f"{name}: the training ends after {updates} updates; {saved}")
