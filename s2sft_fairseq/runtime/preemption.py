"""A training that is asked to end saves a checkpoint first: SIGTERM, SIGUSR1 and Ctrl-C.

fairseq ends at once, and what was learned since the last checkpoint is lost. Here the training finishes its update, and
the validation that is due after it, saves ``checkpoint_last.pt`` and ends with a status of its own. The same command
goes on from there, as if nothing had happened.

``status.json`` beside the checkpoints tells a scheduler what is left to do.
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

from s2sft_fairseq.files import write_whole
from s2sft_fairseq.runtime import Function, wrap
from s2sft_fairseq.runtime.lost_ranks import new_group
from s2sft_fairseq.signals import INTERRUPTED, STATUS, end, handled

logger = logging.getLogger(__name__)

STATUS_FILE = "status.json"


class _Asked:
    """Which signal has asked this process to end; 0: none has."""

    number = 0
    group: Any = None
    """Through which ranks tell each other, on the CPU; made by the first update."""


def install() -> None:
    """Watch for signals while a training runs, and end after an update where one has come."""
    wrap(distributed_utils, "call_main", _run)
    wrap(train, "train", _epoch)
    wrap(train, "validate_and_save", _validate_and_save)
    wrap(checkpoint_utils, "save_checkpoint", _save_with_status)


def _run(call: Function, cfg: Any, main: Function, **options: Any) -> None:
    """Patch ``call_main`` of fairseq/distributed/utils.py: hand signals to the processes that it starts, one for each
    GPU, and take their exit status for that of the training."""
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
    """Handle a signal before the first update, or in the process that has started the others."""
    # The workers that load data end with the process that they work for.
    if ranks := [process for process in multiprocessing.active_children() if not process.daemon]:
        # Ctrl-C reaches all processes of a terminal by itself.
        for rank in ranks if number != signal.SIGINT else ():
            os.kill(rank.pid, number)  # type: ignore[arg-type]  # it has started
        return
    end(number, frame)


def _epoch(run: Function, *args: Any) -> Any:
    """Patch ``train`` of fairseq_cli/train.py: from here on a signal has to wait for the end of the update."""
    with handled(_ask):
        return run(*args)


def _ask(number: int, frame: FrameType | None) -> None:
    """Handle a signal while updates are made; the second Ctrl-C ends the training at once."""
    if number == signal.SIGINT and _Asked.number == signal.SIGINT:
        raise KeyboardInterrupt
    _Asked.number = number
    again = "; once more: at once" if number == signal.SIGINT else ""
    logger.info(f"{signal.Signals(number).name}: the training ends after this update{again}")


def _validate_and_save(run: Function, cfg: Any, trainer: Any, task: Any, epoch_itr: Any, *args: Any) -> Any:
    """Patch ``validate_and_save`` of fairseq_cli/train.py, which runs after each update: save and end, if asked.

    What is due is done before, so that a training that goes on has validated wherever one without signals has.
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
    """Return the signal that any rank was asked by: all have to end after the same update."""
    if not (distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1):
        return _Asked.number
    if _Asked.group is None:
        # On the CPU: a GPU need not wait for it.
        _Asked.group = new_group(backend="gloo")
    number = torch.tensor(_Asked.number)
    distributed.all_reduce(number, op=distributed.ReduceOp.MAX, group=_Asked.group)
    return int(number)


def _save_with_status(save: Function, cfg: Any, trainer: Any, epoch_itr: Any, *args: Any) -> Any:
    """Patch ``save_checkpoint`` of fairseq/checkpoint_utils.py: tell what it has saved."""
    saved = save(cfg, trainer, epoch_itr, *args)
    _write_status(cfg, trainer, epoch_itr, "to be continued")
    return saved


def _write_status(cfg: Any, trainer: Any, epoch_itr: Any, state: str) -> None:
    """Write ``status.json``, on the rank that writes the checkpoints."""
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
    write_whole(Path(cfg.save_dir) / STATUS_FILE, lambda path: path.write_text(text, encoding="utf-8"))


def _save(cfg: Any, trainer: Any, epoch_itr: Any, name: str) -> None:
    """Save ``checkpoint_last.pt``, also where none is wanted otherwise; not with ``--no-save``."""
    unwanted, cfg.no_last_checkpoints = cfg.no_last_checkpoints, False
    try:
        checkpoint_utils.save_checkpoint(cfg, trainer, epoch_itr, None)
    finally:
        cfg.no_last_checkpoints = unwanted
    updates = trainer.get_num_updates()
    saved = "nothing is saved (--no-save)" if cfg.no_save else f"{cfg.save_dir} has it: the same command goes on"
    logger.info(f"{name}: the training ends after {updates} updates; {saved}")
