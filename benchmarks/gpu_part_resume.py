"""Part ``resume`` of `gpu.py`: a resumed training has the losses of a training that was not stopped.

On a GPU the losses are not equal to the bit, because some kernels add in an order that varies. So two resumed trainings
are also compared with each other.
"""

import math
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from fairseq.trainer import Trainer
from gpu_timing import Record, Settings
from training_grid import Cell
from training_ours import collate, make_trainer, watch_loss
from training_pairs import draw_pairs

UPDATES = 4
"""Updates before the checkpoint is saved, and as many after it."""
PRECISIONS = ("float32", "bf16", "fp16", "amp")
OPTIMIZERS = {"": "", ", factored moments": "--factored-moments"}


def cells(settings: Settings) -> list[Record]:
    """Return the cells."""
    return [
        {"name": f"{precision}{optimizer}", "precision": precision, "extra": words}
        for optimizer, words in OPTIMIZERS.items()
        for precision in (PRECISIONS[:2] if words else PRECISIONS)
        if precision != "fp16" or settings.device == "cuda"  # fp16 with loss scaling is for GPUs
    ]


def measure(cell: Record, settings: Settings) -> Record:
    """Measure one cell."""
    training = Cell(
        config="unilm_tiny" if settings.tiny else "unilm_base",
        method="pseudo_masked",
        lengths="8..30/3..8" if settings.tiny else "60..464/8..48",
        batch=4 if settings.tiny else 16,
        system="ours",
        vocab=100 if settings.tiny else 30522,
        device=settings.device,
        threads=torch.get_num_threads(),
        seed=1,
        updates=UPDATES,
        precision=cell["precision"],
        extra=cell["extra"],
    )
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "checkpoint.pt")
        trainer = make_trainer(training)
        before = losses(trainer, training, range(1, UPDATES + 1))
        saved = trainer.get_num_updates()
        trainer.consolidate_optimizer()
        trainer.save_checkpoint(file, {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}})
        later = range(UPDATES + 1, 2 * UPDATES + 1)
        expected = losses(trainer, training, later)
        del trainer
        resumed = []
        for _ in range(2):
            again = make_trainer(training)
            again.load_checkpoint(file)
            if again.get_num_updates() != saved:
                raise RuntimeError(f"{again.get_num_updates()} updates were loaded, {saved} saved")
            resumed.append(losses(again, training, later))
            del again
    return {
        "before": before,
        "expected": expected,
        "resumed": resumed[0],
        "difference": farthest(resumed[0], expected),
        "difference_of_two": farthest(*resumed),
    }


def losses(trainer: Trainer, cell: Cell, updates: Sequence[int]) -> list[float]:
    """Run some updates, and return the mean loss of a label of each."""
    found = watch_loss(trainer)
    for number in updates:
        trainer.train_step([collate(trainer.task, draw_pairs(cell, number), epoch=number)])
    if infinite := [float(loss) for loss in found if not math.isfinite(loss)]:
        raise RuntimeError(f"losses are {infinite}")
    return [float(loss) for loss in found]


def farthest(some: Sequence[float], others: Sequence[float]) -> float:
    """Return the largest relative difference of the two losses of an update."""
    return max(abs(one - other) / abs(other) for one, other in zip(some, others, strict=True))
