"""Patches of fairseq's log for TensorBoard: an error that names its folder, and files of one training each."""

import contextlib
from pathlib import Path
from typing import Any

from fairseq.distributed import utils as distributed_utils
from fairseq.logging import progress_bar

from s2sft_fairseq.files import disk_errors
from s2sft_fairseq.runtime import Function, wrap


def install() -> None:
    """Report a full disk once, by the name of the folder, and close the files at the end of a training."""
    wrap(progress_bar.TensorboardProgressBarWrapper, "_log_to_tensorboard", _log)
    wrap(distributed_utils, "call_main", _run)
    with contextlib.suppress(ImportError):  # TensorBoard is optional
        from tensorboard.summary.writer.event_file_writer import _AsyncWriterThread

        wrap(_AsyncWriterThread, "run", _write)


def _log(log: Function, bar: Any, stats: Any, tag: str | None = None, step: int | None = None) -> None:
    """Patch ``_log_to_tensorboard`` of fairseq/logging/progress_bar.py: name the folder that cannot be written."""
    try:
        with disk_errors(Path(bar.tensorboard_logdir), "checkpoints that were saved before are kept"):
            log(bar, stats, tag, step)
    except Exception:
        progress_bar._tensorboard_writers.clear()  # closing them would fail again
        raise


def _run(call: Function, *args: Any, **options: Any) -> None:
    """Patch ``call_main`` of fairseq/distributed/utils.py: close the files at the end of a command.

    fairseq closes them when the process ends, so that the next training of a recipe would write into them.
    """
    try:
        call(*args, **options)
    finally:
        progress_bar._close_writers()
        progress_bar._tensorboard_writers.clear()


def _write(write: Function, thread: Any) -> None:
    """Patch the thread of TensorBoard that writes: it keeps its error for `_log`, and need not print it as well."""
    with contextlib.suppress(OSError):
        write(thread)
