"""Commands and scripts in the process of the tests, also for fixtures that live longer than a test."""

import contextlib
import io
import logging
import runpy
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from s2sft_fairseq import cli, plugin  # noqa: F401  the plugin patches fairseq, so it is imported first
from s2sft_fairseq.runtime import warnings as warning_filters

# isort: split
from fairseq import checkpoint_utils
from fairseq.logging import metrics


def call(folder: Path, *words: object) -> subprocess.CompletedProcess:
    """Run ``s2sft WORDS`` in a folder; the result has ``returncode``, ``stdout`` and ``stderr``."""
    return _run(folder, words, lambda: cli.main(prepared(words)))


def call_script(path: Path, folder: Path, *words: object) -> subprocess.CompletedProcess:
    """Run a script in a folder; it can import the modules next to it."""
    with (
        mock.patch.object(sys, "argv", [str(path), *map(str, words)]),
        mock.patch.object(sys, "path", [str(path.parent), *sys.path]),
    ):
        return _run(folder, words, lambda: runpy.run_path(str(path), run_name="__main__"))


def prepared(words: tuple[object, ...]) -> list[str]:
    """Return a command's words; one that reads data gets --num-workers 0 unless it is set, which is faster."""
    loads = words[:1] and words[0] in ("train", "generate", "interactive", "validate") and "--num-workers" not in words
    return [*map(str, words), *(("--num-workers", "0") if loads else ())]


def forget() -> None:
    """Reset what fairseq keeps in module globals: it expects one run per process."""
    metrics.reset()
    vars(checkpoint_utils.save_checkpoint).pop("best", None)


def _run(folder: Path, words: tuple[object, ...], work: Callable[[], object]) -> subprocess.CompletedProcess:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    forget()
    root = logging.getLogger()
    level, root.handlers[:], handlers = root.level, [], root.handlers[:]  # the command removes those that it finds
    try:
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
        ):
            warning_filters.install()  # pytest has removed them
            done = work()
            status = done if isinstance(done, int) else 0
    except SystemExit as exit_:
        status = exit_.code or 0
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
    printed, errors = (stream.buffer.getvalue().decode() for stream in (out, err))
    return subprocess.CompletedProcess(list(map(str, words)), status, printed, errors)
