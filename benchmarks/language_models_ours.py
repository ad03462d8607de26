"""This package, for `language_models.py`: ``s2sft finetune`` with its defaults, but for a number of minutes.

The learning rate follows the share of the minutes that is over, and not the number of updates, which is not known. All
minutes are minutes of training: there is no validation, one checkpoint, and no choice of a search.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from language_models_task import Cell, Task

from s2sft_fairseq import Seq2Seq, finetune, plugin  # noqa: F401  (the plugin patches fairseq before it is imported)

from fairseq.optim.lr_scheduler import register_lr_scheduler  # isort: skip
from fairseq.optim.lr_scheduler.polynomial_decay_schedule import (  # isort: skip
    PolynomialDecayLRSchedule,
    PolynomialDecayLRScheduleConfig,
)

PARTS = 10_000
"""Parts of the minutes, which the schedule counts in place of updates; a tenth of them is the warm-up."""
NEVER = 1_000_000
"""More updates than any cell has time for."""


@dataclass
class ByTimeConfig(PolynomialDecayLRScheduleConfig):
    """Options of the schedule."""

    training_minutes: float = field(default=1.0, metadata={"help": "minutes after which the learning rate is 0"})


@register_lr_scheduler("by_time", dataclass=ByTimeConfig)
class ByTime(PolynomialDecayLRSchedule):
    """Polynomial decay by time."""

    updates = 0
    seconds = 0.0

    def __init__(self, cfg: ByTimeConfig, optimizer: Any) -> None:
        super().__init__(cfg, optimizer)
        self.began = time.monotonic()

    def step_update(self, num_updates: int) -> float:
        """Set the learning rate for the time that has passed."""
        ByTime.updates, ByTime.seconds = num_updates, time.monotonic() - self.began
        share = ByTime.seconds / (60 * self.cfg.training_minutes)
        rate: float = super().step_update(min(int(PARTS * share), PARTS))
        return rate


def train(cell: Cell, task: Task, folder: Path) -> dict[str, Any]:
    """Train for the minutes of the cell, and write a model folder; return the number of updates and the seconds."""
    further = [
        *("--lr-scheduler", "by_time", "--training-minutes", str(cell.minutes)),
        *("--total-num-update", str(PARTS), "--warmup-updates", str(PARTS // 10)),
        *("--stop-time-hours", str(cell.minutes / 60), "--disable-validation", "--save-interval-updates", "0"),
        *("--log-interval", "10", *cell.options),
    ]
    began = time.monotonic()
    finetune(
        cell.path,
        list(zip(*task.train, strict=True)),
        list(zip(*task.valid, strict=True)),
        output=folder,
        further=further,
        updates=NEVER,
        candidates=1,
        metric="loss",
        beam=1,
        scored_on=1,
        batch=cell.batch,
        seed=cell.seed,
        workers=cell.threads,
        cpu=True,
    )
    whole = time.monotonic() - began
    return {"updates": ByTime.updates, "training_seconds": ByTime.seconds, "whole_seconds": whole}


def load(cell: Cell, folder: Path) -> Any:
    """Return a function from sources and the size of a batch to greedy texts."""
    model = Seq2Seq.from_pretrained(folder / "model")
    return lambda sources, batch: model.generate(sources, beam=1, batch_size=batch)


def files(cell: Cell, folder: Path) -> Path:
    """Return the folder whose size a user needs on disk."""
    return folder / "model"
