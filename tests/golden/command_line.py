"""Command lines run within the process of the tests, without fixtures, to prepare data once for many tests."""

import contextlib
import io
import logging
import os
import sys
import warnings
from pathlib import Path

from s2sft_fairseq import cli

# isort: split
from fairseq import checkpoint_utils
from fairseq.logging import metrics


def s2sft(folder: Path, *words: object) -> str:
    """Run ``s2sft WORDS`` in `folder` and return what it writes to stdout; raises AssertionError if it fails."""
    root, here, arguments = logging.getLogger(), Path.cwd(), sys.argv
    handlers, level = root.handlers[:], root.level
    # Reset what fairseq keeps in module globals: it expects one run per process.
    metrics.reset()
    vars(checkpoint_utils.save_checkpoint).pop("best", None)
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    os.chdir(folder)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            warnings.simplefilter("ignore")  # pytest would raise warnings that the command filters out
            status = cli.main([str(word) for word in words])
    except SystemExit as exit_:
        status = exit_.code
    finally:
        os.chdir(here)
        sys.argv, root.handlers[:] = arguments, handlers
        root.setLevel(level)
    printed, errors = (stream.buffer.getvalue().decode() for stream in (out, err))
    assert not status, f"s2sft {' '.join(map(str, words))}: {status}\n{printed[-2000:]}\n{errors[-2000:]}"
    return printed
