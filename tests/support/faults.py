"""Faults at a chosen place of a training, the same in every run; random kills are tested elsewhere.

    with fail_at("after update", 5, signalled(signal.SIGTERM)): ...

With several ranks, only the rank that is to fail calls this.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from unittest import mock

from fairseq.trainer import Trainer

from s2sft_fairseq.runtime import checkpoints

Fault = Callable[[], None]
PLACES = ("before update", "after update", "validating", "saving", "saved")


def signalled(number: int) -> Fault:
    """Return a fault that sends a signal to this process."""
    return lambda: os.kill(os.getpid(), number)


def killed() -> None:
    """End this process at once, without cleaning up."""
    os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def fail_at(place: str, update: int, fault: Fault) -> Iterator[list[int]]:
    """Make a training fail once, at a place of an update, counted from 1; yield the list of updates where it failed."""
    had: list[int] = []

    def at(here: str, trainer_updates: int) -> None:
        if here == place and trainer_updates == update and not had:
            had.append(update)
            fault()

    trainers: list[Trainer] = []
    step, valid, save = Trainer.train_step, Trainer.valid_step, checkpoints.save_checkpoint

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

    assert place in PLACES, place
    with (
        mock.patch.object(Trainer, "train_step", train_step),
        mock.patch.object(Trainer, "valid_step", valid_step),
        mock.patch.object(checkpoints, "save_checkpoint", save_checkpoint),
    ):
        yield had
