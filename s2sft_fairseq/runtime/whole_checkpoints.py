"""How a training saves its checkpoints: our own saving in place of fairseq's, in a folder that no other training uses.

fairseq writes a second time into the file that it could not finish, copies the damaged file over ``checkpoint_best.pt``
and ``checkpoint_last.pt``, deletes older checkpoints, and ends with exit status 0.
"""

import functools
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager

from s2sft_fairseq.checkpoints.saving import copy_checkpoint, save_checkpoint
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import locked, remove_temporary

_CHECKPOINT = re.compile(r"(checkpoint.*|crash)\.pt")
_locks: dict[Path, AbstractContextManager] = {}  # of the folders that this process saves to


def _save_whole(save: Callable) -> Callable:
    @functools.wraps(save)
    def torch_persistent_save(obj: Any, filename: str, async_write: bool = False) -> None:
        if PathManager.supports_rename(filename):
            save_checkpoint(obj, filename)
        else:
            save(obj, filename, async_write)

    return torch_persistent_save


def _copy_whole(copy: Callable) -> Callable:
    @functools.wraps(copy)
    def copy_whole(src_path: str, dst_path: str, overwrite: bool = False) -> str | bool:
        if not (PathManager.supports_rename(src_path) and PathManager.supports_rename(dst_path)):
            return copy(src_path, dst_path, overwrite=overwrite)
        copy_checkpoint(src_path, dst_path)
        return True

    return copy_whole


def _lock(verify: Callable) -> Callable:
    """fairseq verifies the folder of checkpoints once, in the one process of a training that saves them."""

    @functools.wraps(verify)
    def verify_checkpoint_directory(save_dir: str) -> None:
        verify(save_dir)
        folder = Path(save_dir).resolve()
        if folder not in _locks and PathManager.supports_rename(save_dir):
            lock = locked(folder)
            lock.__enter__()
            _locks[folder] = lock
            remove_temporary(folder, _CHECKPOINT.fullmatch)

    return verify_checkpoint_directory


def _run(call: Callable) -> Callable:
    @functools.wraps(call)
    def call_main(cfg: Any, main: Callable, **kwargs: object) -> None:
        if cfg.checkpoint.write_checkpoints_asynchronously:
            raise UserError("--save-async must be left out: errors of the threads that save would go unnoticed")
        verify = checkpoint_utils.verify_checkpoint_directory
        if cfg.checkpoint.no_save:  # nothing to lock
            checkpoint_utils.verify_checkpoint_directory = verify.__wrapped__
        try:
            call(cfg, main, **kwargs)
        finally:
            checkpoint_utils.verify_checkpoint_directory = verify
            while _locks:
                _locks.popitem()[1].__exit__(None, None, None)

    return call_main


def apply() -> None:
    """Replace fairseq's saving and copying of local files, and lock the folder of the checkpoints."""
    checkpoint_utils.torch_persistent_save = _save_whole(checkpoint_utils.torch_persistent_save)
    PathManager.copy = staticmethod(_copy_whole(PathManager.copy))
    checkpoint_utils.verify_checkpoint_directory = _lock(checkpoint_utils.verify_checkpoint_directory)
    distributed_utils.call_main = _run(distributed_utils.call_main)
