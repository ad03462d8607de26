"""Faults at a chosen place of a training, the same in every run; tests/end_to_end/test_resume.py has random ones, too.

Within ``with fail_at(0, 5, "after update", signalled(signal.SIGTERM))``, rank 0 gets SIGTERM after its fifth update.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from fairseq.trainer import Trainer

from s2sft_fairseq.checkpoints import saving
from s2sft_fairseq.runtime import checkpoints

Fault = Callable[[], None]
PLACES = ("before update", "after update", "validating", "saving", "written", "saved")
"""Of an update; a checkpoint that is written does not have its name yet."""


def signalled(number: int) -> Fault:
    """Return a fault that sends a signal to this process."""
    return lambda: os.kill(os.getpid(), number)


def killed() -> None:
    """End this process at once, without cleaning up."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed_at_move(moves: int, work: Callable[[], object]) -> bool:
    """Do some work in a process that is killed before its `moves`-th move of a file; return whether it was."""
    child = os.fork()
    if not child:
        left = moves

        def counted(move: Callable[..., object]) -> Callable[..., object]:
            def count(*words: object, **options: object) -> object:
                nonlocal left
                left -= 1
                if not left:
                    killed()
                return move(*words, **options)

            return count

        os.rename, os.replace = counted(os.rename), counted(os.replace)
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@contextlib.contextmanager
def fail_at(rank: int, update: int, place: str, fault: Fault) -> Iterator[list[int]]:
    """Make a rank of a training fail once, at a place of an update; yield the list of updates where it failed.

    Ranks are counted from 0, as torchrun counts them, and updates from 1.
    """
    had: list[int] = []

    def at(here: str, trainer_updates: int) -> None:
        is_it = int(os.environ.get("RANK", "0")) == rank
        if is_it and here == place and trainer_updates == update and not had:
            had.append(update)
            fault()

    trainers: list[Trainer] = []
    step, valid, save = Trainer.train_step, Trainer.valid_step, checkpoints.save_checkpoint
    check = saving.check_whole

    def train_step(trainer: Trainer, *args: object, **options: object) -> object:
        trainers[:] = [trainer]
        at("before update", trainer.get_num_updates() + 1)
        done = step(trainer, *args, **options)
        at("after update", trainer.get_num_updates())
        return done

    def valid_step(trainer: Trainer, *args: object, **options: object) -> object:
        at("validating", trainer.get_num_updates())
        return valid(trainer, *args, **options)

    def save_checkpoint(state: object, path: object) -> None:
        at("saving", trainers[0].get_num_updates())
        save(state, path)
        at("saved", trainers[0].get_num_updates())

    def check_whole(path: Path) -> None:
        if trainers:  # not yet when an encoder is converted
            at("written", trainers[0].get_num_updates())
        check(path)

    assert place in PLACES, place
    with (
        mock.patch.object(Trainer, "train_step", train_step),
        mock.patch.object(Trainer, "valid_step", valid_step),
        mock.patch.object(checkpoints, "save_checkpoint", save_checkpoint),
        mock.patch.object(saving, "check_whole", check_whole),
    ):
        yield had
