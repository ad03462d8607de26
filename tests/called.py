"""Commands of ``s2sft`` in the process of the tests, for fixtures that live longer than a test."""

import contextlib
import io
import logging
import subprocess
import warnings
from pathlib import Path

from s2sft_fairseq import cli
from s2sft_fairseq.runtime import warning_filters


def call(folder: Path, *words: object) -> subprocess.CompletedProcess:
    """Run ``s2sft WORDS`` in a folder; the result has ``returncode``, ``stdout`` and ``stderr``."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    root = logging.getLogger()
    level, root.handlers[:], handlers = root.level, [], root.handlers[:]  # the command takes away what it finds
    texts = [str(word) for word in words]
    try:
        with (
            contextlib.chdir(folder),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(),
        ):
            warning_filters.apply()  # pytest has taken them away
            status = cli.main(texts)
    except SystemExit as exit_:
        status = exit_.code
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
    printed, errors = (stream.buffer.getvalue().decode() for stream in (out, err))
    return subprocess.CompletedProcess(texts, status, printed, errors)
