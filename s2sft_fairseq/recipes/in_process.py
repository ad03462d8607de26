"""Commands one after the other in this process: each begins as in a process of its own, and is measured.

fairseq expects one command a process, and keeps state in its modules. This is undone: results are the same to the last
bit, and the memory of a command is free for the next one.
"""

import contextlib
import ctypes
import functools
import gc
import json
import logging
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from s2sft_fairseq.errors import UserError

_STATUS = {UserError: 2, KeyboardInterrupt: 130}
_ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def like_a_process() -> Iterator[None]:
    """Hide from a command what earlier ones have left behind, and free what it leaves."""
    known = [logging.getLogger(), *(one for one in logging.root.manager.loggerDict.values() if hasattr(one, "level"))]
    loggers = [(one, one.level, one.handlers[:]) for one in known]
    arguments, environment = sys.argv, dict(os.environ)
    _reset()
    try:
        yield
    finally:
        sys.argv = arguments
        os.environ.clear()
        os.environ.update(environment)
        for logger, level, handlers in loggers:
            for handler in set(logger.handlers).difference(handlers):
                handler.close()  # a --log-file
            logger.setLevel(level)
            logger.handlers[:] = handlers
        _free_memory()


def _reset() -> None:
    """Reset what fairseq keeps for the one training of a process, and PyTorch's random numbers."""
    if "fairseq" in sys.modules:
        import torch
        from fairseq import checkpoint_utils
        from fairseq.logging import metrics
        from fairseq_cli import train

        torch.manual_seed(torch.Generator().initial_seed())
        metrics.reset()
        for function in (checkpoint_utils.save_checkpoint, train.should_stop_early):
            vars(function).pop("best", None)


def _free_memory() -> None:
    gc.collect()
    if dynamo := sys.modules.get("torch._dynamo"):
        dynamo.reset()  # compiled code holds parameters
    if torch := sys.modules.get("torch"):
        torch.cuda.empty_cache()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def measured(log: Path, command: Sequence[str]) -> Iterator[None]:
    """Add a line to a file: a command, its exit status, its seconds, the peak memory of this process, the commit."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    start, status = time.perf_counter(), 0
    try:
        yield
    except BaseException as error:
        status = error.code if isinstance(error, SystemExit) else _STATUS.get(type(error), 1)
        raise
    finally:
        record = {
            "command": command,
            "status": status,
            "seconds": round(time.perf_counter() - start, 3),
            "peak_memory_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9, 2),
            "commit": _commit(),
        }
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")


@functools.cache
def _commit() -> str:
    """Return the commit of the checkout; an installed package has none."""
    if not (_ROOT / ".git").exists() or not shutil.which("git"):
        return ""
    git = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip()
