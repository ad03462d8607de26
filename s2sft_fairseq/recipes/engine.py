"""Stages that each make a file or a folder: done once, locked, and with settings that stay.

Their commands run one after the other in this process: each begins as in a process of its own, and is measured. fairseq
expects one command a process, and keeps state in its modules. This is undone: results are the same to the last bit, and
the memory of a command is free for the next one.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.files import disk_errors, locked, write_whole
from s2sft_fairseq.recipes.training_log import Progress, plot, shortened
from s2sft_fairseq.runtime import warnings as warning_filters

Call = Callable[[str, Sequence[str]], object]
"""Runs a command of ``s2sft`` by its name and its arguments."""


def options(**values: object) -> list[str]:
    """Return options of a command: True has no value, a list several, and None, False and "" leave an option out."""
    words = []
    for name, value in values.items():
        if value is not None and value is not False and value != "":
            listed = value if isinstance(value, list) else [] if value is True else [value]
            words += [as_option(name), *map(str, listed)]
    return words


class Stages:
    """What runs stages, and the commands in them."""

    def __init__(self, name: str, log: Path, call: Call) -> None:
        """
        Args:
            name: for what is printed.
            log: each command, with its seconds and its memory, is added to this file.
            call: runs a command in this process.
        """
        self.name, self.log, self._call = name, log, call

    def say(self, text: str) -> None:
        print(f"{self.name}: {text}", flush=True)

    def run(self) -> None:
        """Do what is not done yet."""
        raise NotImplementedError

    def stage(self, made: Path, what: str, work: Callable[[Path], object]) -> None:
        """Make a file or a folder, unless it is there.

        Args:
            made: the file or folder.
            what: is done, for what is printed.
            work: writes either `made` or the path that it is given, which then becomes `made`.

        Raises:
            UserError: if another process is making it; and what `work` raises.
        """
        if made.exists():
            self.say(f"{what}: done before ({made})")
            return
        with locked(made, made.with_name(f".stage-{made.name}.lock")):
            self.say(f"{what} ...")
            start, partial = time.monotonic(), made.with_name(f"{made.name}.partial")
            if partial.is_symlink() or partial.is_file():
                partial.unlink()
            shutil.rmtree(partial, ignore_errors=True)
            with disk_errors(made, "what was done before is kept, and the next run goes on from it"):
                work(partial)
                if os.path.lexists(partial):
                    partial.rename(made)
            self.say(f"{what}: {time.monotonic() - start:.0f} s, wrote {made}")

    def pin(self, file: Path, made: Iterable[str], **settings: object) -> None:
        """Note what the files beside a file are made with; settings that nothing was made with are forgotten.

        Args:
            file: holds the settings.
            made: names of the files and folders beside it.
            settings: compared as text.

        Raises:
            UserError: if one of the files is there, made with other settings.
        """
        now = {name: "" if value is None else str(value) for name, value in settings.items()}
        if not file.exists() or not any((file.parent / name).exists() for name in made):
            text = json.dumps(now, indent=1, ensure_ascii=False)
            write_whole(file, lambda path: path.write_text(text, encoding="utf-8"))
        try:
            before = json.loads(file.read_text(encoding="utf-8"))
        except ValueError:  # an earlier version wrote lines
            before = {}
        changed = [name for name in now | before if now.get(name, "") != before.get(name, "")]
        if changed:
            lines = [f"  {name}: before {before.get(name, '')}, now {now.get(name, '')}" for name in changed]
            heading = f"{file.parent} holds files of other settings; name another folder, or remove it"
            raise UserError("\n".join([heading, *lines]))

    def s2sft(self, command: str, /, *words: object, **named: object) -> None:
        """Run a command of ``s2sft`` with arguments and `options`; raises what the command raises."""
        texts = [*map(str, words), *options(**named)]
        with like_a_process(), measured(self.log, ["s2sft", command, *texts]):
            if command in ("preprocess", "train"):
                # They fork: without this, tokenizers warns that it had threads before.
                os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
            self._call(command, texts)

    def printed(self, command: str, /, *words: object, **named: object) -> str:
        """Run a command of ``s2sft`` and return what it prints."""
        with contextlib.redirect_stdout(io.StringIO()) as output:
            self.s2sft(command, *words, **named)
        return output.getvalue()

    def convert(self, encoder: Path, made: Path, *words: object) -> None:
        """Convert a pretrained encoder, or link to one that is converted."""
        if is_converted(encoder):
            made.symlink_to(encoder.resolve())
        else:
            self.s2sft("convert", encoder, "--to", made, *words)

    def train(self, folder: Path, words: Iterable[object], updates: int | None) -> None:
        """Train, or resume a training, and show its progress.

        Args:
            folder: of ``checkpoints`` and ``train.log``.
            words: arguments of ``s2sft train``.
            updates: how many there are, where that is known.
        """
        if not (folder / "checkpoints" / "checkpoint_last.pt").exists():
            (folder / "train.log").unlink(missing_ok=True)  # of a training that saved nothing
        with shortened(Progress(updates)):
            self.s2sft("train", *words)

    def plot(self, folder: Path) -> None:
        """Draw the losses of a training; without matplotlib there is no picture, and nothing else is missing."""
        try:
            plot(folder / "train.log", folder / "loss.png")
        except (ImportError, UserError) as error:
            self.say(f"no plot of the losses: {error}")


def is_converted(encoder: Path) -> bool:
    """Tell whether ``s2sft convert`` wrote a folder."""
    return all((encoder / name).is_file() for name in ("model.pt", "config.json"))


_STATUS = {UserError: 2, KeyboardInterrupt: 130}
_ROOT = Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def like_a_process() -> Iterator[None]:
    """Hide from a command what earlier ones have left behind, and free what it leaves."""
    named = logging.root.manager.loggerDict.values()
    known = [logging.getLogger(), *(one for one in named if isinstance(one, logging.Logger))]
    loggers = [(one, one.level, one.handlers[:]) for one in known]
    arguments, environment = sys.argv, dict(os.environ)
    _reset()
    try:
        with warnings.catch_warnings():
            warning_filters.install()  # a program of the user's has filters of its own
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
    """Return the commit of the checkout; an installed package has none."""
    if not (_ROOT / ".git").exists() or not shutil.which("git"):
        return ""
    git = ["git", "-C", str(_ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip()
