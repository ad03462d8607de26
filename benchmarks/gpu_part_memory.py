"""Part ``memory`` of `gpu.py`: the largest batch whose update fits into the device's memory, and its speed."""

from fairseq.trainer import Trainer
from gpu_part_training import LENGTHS, MODELS, TINY_LENGTHS, TINY_MODELS, as_cell, timed, update_of
from gpu_timing import Record, Settings, release
from training_grid import Cell
from training_ours import make_trainer

from s2sft_fairseq.inference.memory import is_out_of_memory

EXTRAS = {"": "", ", checkpointed": "--checkpoint-activations"}
MOST = {"cuda": 1 << 20, "cpu": 8}
"""Most examples of a batch that is tried; few on a CPU, where memory is not filled."""


def cells(settings: Settings) -> list[Record]:
    """Return the cells."""
    models, lengths = (TINY_MODELS, TINY_LENGTHS) if settings.tiny else (MODELS, LENGTHS)
    return [
        {"name": f"largest batch: {model} {lengths[0]}{name}", "model": model, "lengths": lengths[0], "extra": extra}
        for name, extra in EXTRAS.items()
        for model in models
    ]


def measure(cell: Record, settings: Settings) -> Record:
    """Find the largest batch, with an error of at most an eighth, and time its updates."""
    most, trainer = MOST[settings.device], make_trainer(as_cell(cell, settings, 1, cell["extra"]))
    fits, too_large, batch = 0, most + 1, 4
    while too_large - fits > max(1, fits // 8):
        if attempt(trainer, as_cell(cell, settings, batch, cell["extra"])):
            fits = batch
        else:
            too_large = batch
        batch = min(2 * fits, most) if too_large > most else (fits + too_large) // 2
    if not fits:
        raise RuntimeError(f"not even {too_large} examples fit")
    del trainer
    release(settings.device)
    found = timed(as_cell(cell, settings, fits, cell["extra"]), settings)
    return {"largest": fits, "first_too_large": too_large if too_large <= most else None, **found}


def attempt(trainer: Trainer, cell: Cell) -> bool:
    """Return whether updates of a batch fit into memory."""
    release(cell.device)
    try:
        call, _ = update_of(cell, trainer)
        call()
        call()  # the first update of a trainer creates the moments
    except RuntimeError as error:  # from the allocator, or from a library that allocates memory itself
        if not is_out_of_memory(error):
            raise
        trainer.zero_grad()
        return False
    return True
