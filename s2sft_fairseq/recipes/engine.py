"""Stages that each make a file or a folder once, with a lock and recorded settings.

Their commands run one after the other in this process, and are measured. fairseq expects one command per process, and
keeps state in its modules. This module resets that state, so that results are bit-identical to those of separate
processes, and frees the memory of each command.
"""

import contextlib
import ctypes
import functools
import gc
import io
import json
import logging
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from s2sft_fairseq.data.bounded_files import read_json_object
from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.files import as_argument, disk_errors, locked, write_whole
from s2sft_fairseq.plots.training import draw, read_run
from s2sft_fairseq.received import has_part
from s2sft_fairseq.recipes.training_log import Progress, shortened
from s2sft_fairseq.runtime import warnings as warning_filters

Call = Callable[[str, Sequence[str]], object]
"""A function that runs a command of ``s2sft``, given its name and arguments."""


def options(**values: object) -> list[str]:
    """Return the options of a command. True gives an option without value; None, False and "" leave the option out.

    A value that looks like an option is joined to its name by ``=``, so that no command reads it as one.
    """
    words = []
    for name, value in values.items():
        if value is None or value is False or value == "":
            continue
        option, text = as_option(name), str(value)
        if value is True:
            words.append(option)
        elif isinstance(value, list):
            words += [option, *map(as_argument, value)]
        else:
            words += [f"{option}={text}"] if text.startswith("-") else [option, text]
    return words


class Stages:
    """A sequence of stages, and the commands in them."""

    def __init__(self, name: str, log: Path, call: Call) -> None:
        """Prepare to run stages.

        Args:
            name: the name at the beginning of messages.
            log: the file to which each command, with its time and memory, is appended.
            call: runs a command in this process.
        """
        self.name, self.log, self._call = name, log, call

    def say(self, text: str) -> None:
        """Print a message."""
        print(f"{self.name}: {text}", flush=True)

    def run(self) -> None:
        """Run all stages that are not done yet."""
        raise NotImplementedError

    def stage(self, made: Path, what: str, work: Callable[[Path], object]) -> None:
        """Make a file or a folder, unless it exists.

        Args:
            made: the file or folder.
            what: the name of the stage, for messages.
            work: writes `made`, or the path that it is called with, which is then renamed to `made`.

        Raises:
            UserError: another process is making it. Exceptions of `work` are raised, too.
        """
        if made.exists():
            self.say(f"{what}: done before ({made})")
            return
        with locked(made, made.with_name(f".stage-{made.name}.lock")):
            self.say(f"{what} ...")
            start, partial = time.monotonic(), made.with_name(f"{made.name}.partial")
            _remove(partial)  # from a run that was killed
            try:
                with disk_errors(made, "finished work is kept, and the next run continues from it"):
                    work(partial)
                    if os.path.lexists(partial):
                        partial.rename(made)
            finally:
                _remove(partial)
            self.say(f"{what}: {time.monotonic() - start:.0f} s, wrote {made}")

    def pin(self, file: Path, made: Iterable[str], **settings: object) -> None:
        """Record the settings of some files. Earlier settings are overwritten if none of the files exists.

        Args:
            file: the file for the settings.
            made: names of files and folders beside it, which are made with the settings.
            settings: the settings, which are compared as text.

        Raises:
            UserError: one of the files exists, but was made with other settings.
        """
        if not file.exists() or not any((file.parent / name).exists() for name in made):
            text = json.dumps(as_texts(settings), indent=1, ensure_ascii=False)
            write_whole(file, lambda path: path.write_text(text, encoding="utf-8"))
        if changed := changes(file, settings):
            lines = [f"  {name}: before {before}, now {now}" for name, (before, now) in changed.items()]
            heading = f"{file.parent} holds files that were made with other settings; name another folder, or remove it"
            raise UserError("\n".join([heading, *lines]))

    def s2sft(self, command: str, /, *words: object, **named: object) -> None:
        """Run a command of ``s2sft`` with arguments `words` and `options` of `named`, without catching exceptions."""
        texts = [*(as_argument(word) if isinstance(word, Path) else str(word) for word in words), *options(**named)]
        with like_a_process(), measured(self.log, ["s2sft", command, *texts]):
            if command in ("preprocess", "train"):
                # They fork: without this, tokenizers warns about its threads.
                os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
            self._call(command, texts)

    def printed(self, command: str, /, *words: object, **named: object) -> str:
        """Run a command of ``s2sft`` and return its output."""
        with contextlib.redirect_stdout(io.StringIO()) as output:
            self.s2sft(command, *words, **named)
        return output.getvalue()

    def convert(self, encoder: Path, made: Path, *words: object) -> None:
        """Convert a pretrained encoder, or link to it if it is already converted."""
        if is_converted(encoder):
            made.symlink_to(encoder.resolve())
        else:
            self.s2sft("convert", encoder, "--to", made, *words)

    def train(self, folder: Path, words: Iterable[object], updates: int | None) -> None:
        """Train, or resume a training, and show its progress.

        Args:
            folder: the folder of ``checkpoints`` and ``train.log``.
            words: arguments of ``s2sft train``.
            updates: number of all updates, if it is known.
        """
        if not (folder / "checkpoints" / "checkpoint_last.pt").exists():
            (folder / "train.log").unlink(missing_ok=True)  # from a training that saved no checkpoint
        with shortened(Progress(updates)):
            self.s2sft("train", *words)

    def plot(self, folder: Path) -> None:
        """Draw the curves of a training; without matplotlib, only print why there is no plot."""
        try:
            draw([read_run(folder)], folder / "training.png")
        except (ImportError, UserError) as error:
            self.say(f"no plot of the training: {error}")


def as_texts(settings: Mapping[str, object]) -> dict[str, str]:
    """Return settings as texts, which are compared; None is "" as if it were not given."""
    return {name: "" if value is None else str(value) for name, value in settings.items()}


def changes(file: Path, settings: Mapping[str, object]) -> dict[str, tuple[str, str]]:
    """Return the settings that differ from those in a file of `Stages.pin`, with both values."""
    try:
        before = read_json_object(file)
    except UserError:  # an earlier version of this package wrote another format
        before = {}
    now = as_texts(settings)
    pairs = {name: (before.get(name, ""), now.get(name, "")) for name in now | before}
    return {name: (one, other) for name, (one, other) in pairs.items() if one != other}


def _remove(partial: Path) -> None:
    """Remove a file, a link or a folder, if it exists."""
    if partial.is_symlink() or partial.is_file():
        partial.unlink()
    shutil.rmtree(partial, ignore_errors=True)


def is_converted(encoder: Path) -> bool:
    """Return whether a folder is a converted encoder."""
    return all(has_part(encoder / name) for name in ("model.pt", "config.json"))


_STATUS = {UserError: 2, KeyboardInterrupt: 130}
_ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def like_a_process() -> Iterator[None]:
    """Run a command as in a process of its own: reset state of earlier commands, and undo its changes afterwards."""
    named = logging.root.manager.loggerDict.values()
    known = [logging.getLogger(), *(one for one in named if isinstance(one, logging.Logger))]
    loggers = [(one, one.level, one.handlers[:]) for one in known]
    arguments, environment = sys.argv, dict(os.environ)
    _reset()
    try:
        with warnings.catch_warnings():
            warning_filters.install()  # the calling program may have other filters
            yield
    finally:
        sys.argv = arguments
        os.environ.clear()
        os.environ.update(environment)
        for logger, level, handlers in loggers:
            for handler in set(logger.handlers).difference(handlers):
                handler.close()  # such as that of --log-file
            logger.setLevel(level)
            logger.handlers[:] = handlers
        _free_memory()


def _reset() -> None:
    """Reset the state that fairseq keeps for the training of a process, and PyTorch's random numbers."""
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
        dynamo.reset()  # compiled code keeps references to parameters
    if torch := sys.modules.get("torch"):
        torch.cuda.empty_cache()
    if platform.libc_ver()[0] == "glibc":
        ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def measured(log: Path, command: Sequence[str]) -> Iterator[None]:
    """Append a line to a log: the command, its exit status and seconds, the peak memory of this process, the commit."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    start = time.perf_counter()
    status: object = 0
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
    """Return the commit of the checkout; "" for an installed package."""
    if not (_ROOT / ".git").exists() or not shutil.which("git"):
        return ""
    git = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip()
