"""The length and the batches of a training, and the options of ``s2sft train`` that recipes share."""

import os
from pathlib import Path

from s2sft_fairseq.recipes.engine import options
from s2sft_fairseq.recipes.settings import Settings

NEVER = 1_000_000
"""An interval in epochs that is never reached: checkpoints are saved by updates."""


def devices(*, cpu: bool = False) -> int:
    """Return the number of GPUs that fairseq trains on, or 1 for the CPU."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if cpu:
        return 1
    if visible is not None:
        return max(1, len([name for name in visible.split(",") if name]))
    import torch

    return max(1, torch.cuda.device_count())


def share_batch(share: int, most: int) -> tuple[int, int]:
    """Split a GPU's share of a batch: return the examples at a time, at most `most`, and the number of times."""
    size = next(size for size in range(min(share, most), 0, -1) if share % size == 0)
    return size, share // size


def count_updates(settings: Settings, examples: Path) -> None:
    """Set the number of updates from the epochs, and the warm-up; `examples` has one training example per line."""
    if settings.updates is None:
        settings.updates = settings.epochs * -(-count_lines(examples) // settings.batch)
    if "warmup" in settings.given:
        return
    if settings.warmup_share:
        settings.warmup = int(float(settings.warmup_share) * settings.updates + 0.5)
    elif 4 * settings.warmup > settings.updates:
        settings.warmup = settings.updates // 10  # the training is much shorter than the paper's


def count_lines(path: Path) -> int:
    """Return the number of lines of a file."""
    with path.open("rb") as file:
        return sum(block.count(b"\n") for block in iter(lambda: file.read(1 << 20), b""))


def held_out_every(updates: int) -> int:
    """Return the interval in updates of validation and saving: both happen 20 times in a training."""
    return updates // 20 if updates > 20 else updates


def optimization(settings: Settings, folder: Path) -> list[str]:
    """Return the options of a training with batches in examples; `folder` is the folder of the training."""
    share = -(-settings.batch // devices(cpu=settings.cpu))
    size, update_freq = share_batch(share, settings.device_batch)
    every = held_out_every(settings.updates)
    return [
        *options(seed=settings.seed, dropout=settings.dropout, attention_dropout=0.1, optimizer="fused_adamw"),
        *options(adam_betas="(0.9, 0.999)", adam_eps=settings.adam_eps or "1e-6"),
        *options(weight_decay=settings.weight_decay, clip_norm="1.0"),
        *options(lr=settings.lr, lr_scheduler="polynomial_decay", warmup_updates=settings.warmup),
        *options(max_update=settings.updates, batch_size=size, update_freq=update_freq),
        *options(validate_interval_updates=every, save_interval_updates=every, keep_interval_updates=1),
        *options(validate_interval=NEVER, save_interval=NEVER, no_epoch_checkpoints=True),
        *saved(settings, folder),
    ]


def saved(settings: Settings, folder: Path) -> list[str]:
    """Return the options of checkpoints, and of a log for `training_log`."""
    every = (settings.updates or 0) // 200 or 1
    return [
        *options(save_dir=folder / "checkpoints", log_interval=every, log_format="json"),
        *options(log_file=folder / "train.log", no_progress_bar=True, cpu=settings.cpu),
        *options(no_model_folder=True),  # the checkpoints are deleted later
    ]
