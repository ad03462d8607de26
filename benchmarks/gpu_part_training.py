"""Part ``training`` of `gpu.py`: updates of pseudo-masked fine-tuning in bfloat16 with dropout 0.1.

Batches have about 8k or 32k positions for all lengths of examples. They are made before the timed update, as the
workers of a training make them; copying them to the device is part of the update.
"""

import copy
import math
from itertools import product
from statistics import median
from typing import Any

import torch
from fairseq import utils
from fairseq.trainer import Trainer
from gpu_timing import Call, Record, Settings, peak_bytes, profiled, seconds_of, tally
from torch import Tensor
from training_cell import amounts
from training_grid import SDPA, Cell, parse_lengths
from training_ours import collate, make_trainer, watch_loss
from training_pairs import draw_pairs, pair_lengths
from training_plain import pad_batch, padded_update

from s2sft_fairseq.models.unilm_config import ATTENTIONS, UnilmConfig

MODELS = {"base": "unilm_base", "large": "unilm_large", "minilm": "minilm_l6_h384"}
LENGTHS = ("464/48", "squad_qg", "30..50/8..16")
POSITIONS = {"8k": 8192, "32k": 32768}
TINY_MODELS, TINY_LENGTHS, TINY_POSITIONS = {"tiny": "unilm_tiny"}, ("20/5", "8..30/3..8"), {"128": 128}
CHOICES = ("auto", "padded", "flash", "loop", "flex")
"""Values of ``--attention``, the most telling first. ``auto`` is measured with the default of ``--compile``, the others
without and with ``--compile``."""
BASELINES = ("plain", SDPA)
"""Padded BERT of `transformers`: with eager attention, as in the original, and with PyTorch's fused attention."""
BATCHES = 3
"""Number of different batches, which the updates take in turn."""


def cells(settings: Settings) -> list[Record]:
    """Return the cells of ``training``, the most telling first."""
    models = TINY_MODELS if settings.tiny else MODELS
    lengths = TINY_LENGTHS if settings.tiny else LENGTHS
    positions = TINY_POSITIONS if settings.tiny else POSITIONS
    ways = [("auto", None), *product(CHOICES[1:], (False,) if settings.tiny else (False, True))]
    found = []
    for model, size, mix in product(models, positions, lengths):
        task = {"model": model, "positions": size, "lengths": mix}
        for attention, compiled in ways:
            words = {None: "", False: ", not compiled", True: ", compiled"}[compiled]
            name = f"{model} {size} {mix}: {attention}{words}"
            found.append({"name": name, **task, "system": "ours", "attention": attention, "compile": compiled})
        found += [{"name": f"{model} {size} {mix}: {name}", **task, "system": name} for name in BASELINES]
    return sorted(found, key=lambda cell: rank(cell, lengths[0]))  # the sort is stable


def rank(cell: Record, first: str) -> int:
    """Return the priority of a cell, 0 first: cells that the bars need come first."""
    is_base, is_8k = cell["model"] == "base", cell["positions"] == "8k"
    if cell["system"] != "ours":
        return 2 if is_base and is_8k else 5
    if is_base and is_8k and cell["lengths"] == first and cell["attention"] in CHOICES[:3]:
        return 0
    if cell["attention"] == "auto":
        return 1 if cell["lengths"] == first or (is_base and is_8k) else 4
    return 3 if is_base and is_8k else 6


def unavailable(cell: Record, settings: Settings) -> str | None:
    """Return why a cell cannot be measured with this version and device; None if it can."""
    attention = cell.get("attention", "auto")
    if attention not in ATTENTIONS:
        return f"--attention is one of {', '.join(ATTENTIONS)}, not {attention}"
    if attention == "flash" and settings.device == "cpu":
        return "flash attention needs a GPU"
    return None


def as_cell(cell: Record, settings: Settings, batch: int, extra: str = "") -> Cell:
    """Return the cell as a cell of `train.py`."""
    return Cell(
        config=(TINY_MODELS if settings.tiny else MODELS)[cell["model"]],
        method="pseudo_masked",
        lengths=cell["lengths"],
        batch=batch,
        system=cell.get("system", "ours"),
        vocab=100 if settings.tiny else 30522,
        device=settings.device,
        threads=torch.get_num_threads(),
        seed=1,
        updates=BATCHES,
        precision="bfloat16",
        extra=extra,
    )


def options(cell: Record) -> str:
    """Return the options of ``s2sft train`` for the cell."""
    words = ["--attention", cell["attention"]]
    if cell["attention"] == "flex":  # FlexAttention has no dropout
        words += ["--attention-dropout", "0"]
    if cell["compile"] is not None:
        is_switch = isinstance(UnilmConfig().compile, bool)
        words += (["--compile"] * cell["compile"]) if is_switch else ["--compile", "on" if cell["compile"] else "off"]
    return " ".join(words)


def examples(lengths: str, positions: int) -> int:
    """Return how many examples with these lengths have about this many positions, placeholders included."""
    shape, shares = parse_lengths(lengths), [(index + 0.5) / 1000 for index in range(1000)]
    mean = sum(shape.source.at(share) + 2 * shape.target.at(share) for share in shares) / len(shares)
    return max(1, round(positions / mean))


def update_of(cell: Cell, trainer: Trainer | None = None) -> tuple[Call, list[Any]]:
    """Return a call that runs an update on the next batch, and the list to which it appends the losses.

    Args:
        cell: the training.
        trainer: an existing trainer of ours, or None to make one.
    """
    pairs = [draw_pairs(cell, number) for number in range(BATCHES)]
    numbers = iter(range(1 << 62))
    if cell.system != "ours":
        train, padded, losses = padded_update(cell), [pad_batch(cell, some) for some in pairs], []
        return lambda: losses.append(train(padded[next(numbers) % BATCHES])), losses
    trainer = make_trainer(cell) if trainer is None else trainer
    batches = [collate(trainer.task, some, epoch) for epoch, some in enumerate(pairs, 1)]
    if trainer.cuda:  # as in fairseq's iterators; otherwise each update waits for the one before
        batches = [utils.apply_to_sample(Tensor.pin_memory, batch) for batch in batches]
    # A new copy each time: fairseq and the model may change the batch that they are given.
    call = lambda: trainer.train_step([copy.copy(batches[next(numbers) % BATCHES])], raise_oom=True)  # noqa: E731
    return call, watch_loss(trainer)


def measure(cell: Record, settings: Settings) -> Record:
    """Measure one cell of ``training``."""
    size = (TINY_POSITIONS if settings.tiny else POSITIONS)[cell["positions"]]
    extra = options(cell) if cell["system"] == "ours" else ""
    return timed(as_cell(cell, settings, examples(cell["lengths"], size), extra), settings)


def timed(cell: Cell, settings: Settings) -> Record:
    """Time updates, and count the calls of the driver in one update."""
    call, losses = update_of(cell)
    seconds = seconds_of(call, settings)
    peak = peak_bytes(settings.device)
    counts = tally(profiled(call, settings.device))
    if not math.isfinite(losses[-1]):
        raise RuntimeError(f"the loss of update {len(losses)} is {float(losses[-1])}")
    work, middle = amounts(cell, pair_lengths(cell)), median(seconds)
    return {
        **work,
        **counts,
        "batch": cell.batch,
        "options": cell.extra,
        "seconds": seconds,
        "ms": 1000 * middle,
        "positions_per_second": work["real_positions"] / middle,
        "tokens_per_second": work["real_tokens"] / middle,
        "flops_per_second": work["flops"] / middle,
        "peak_bytes": peak,
        "first_loss": float(losses[0]),
        "last_loss": float(losses[-1]),
    }
