"""Processes that tests start, with this checkout's package and one thread; and which tests may start any."""

import functools
import multiprocessing.process
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
S2SFT = (sys.executable, "-m", "s2sft_fairseq")


def environment(**changes: str) -> dict[str, str]:
    """Return the environment of a process that finds this checkout's package first, with `changes`."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **changes}


def run_in(
    folder: Path, *words: object, status: int | None = 0, stdin: str = "", **changes: str
) -> subprocess.CompletedProcess:
    """Run a process in `folder`, with `changes` to its environment; the result has `stdout` and `stderr` as text.

    An exit status other than `status` (None: any) fails the test and shows both.
    """
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=environment(**changes),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if status is not None and done.returncode != status:
        output = f"{done.stdout[-4000:]}\n--- stderr\n{done.stderr[-4000:]}"
        pytest.fail(f"{' '.join(done.args)}: exit status {done.returncode}, expected {status}\n{output}")
    return done


class Guard:
    """Fails tests that start a process without the mark `process`, so that tests without it are quick."""

    def __init__(self) -> None:
        self.test: pytest.Item | None = None  # the running test

    def install(self) -> None:
        """Guard every way in which tests and the package start processes."""
        for owner, name in (
            (subprocess.Popen, "__init__"),
            (os, "fork"),
            (multiprocessing.process.BaseProcess, "start"),
        ):
            setattr(owner, name, self._guarded(getattr(owner, name)))

    def _guarded(self, start: Callable) -> Callable:
        @functools.wraps(start)
        def guarded(*arguments: object, **options: object) -> object:
            if self.test is not None and self.test.get_closest_marker("process") is None:
                raise RuntimeError(f"{self.test.nodeid} starts a process: mark it with @pytest.mark.process")
            return start(*arguments, **options)

        return guarded
