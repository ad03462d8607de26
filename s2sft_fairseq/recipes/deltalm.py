"""--method deltalm: its settings, batches and training options, which differ from the methods for encoders."""

from collections.abc import Sequence
from pathlib import Path

from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.recipes.engine import options
from s2sft_fairseq.recipes.settings import BySource, Settings
from s2sft_fairseq.recipes.training import NEVER, devices, held_out_every, saved

_OF_ENCODERS = (
    *("fit_head", "noise_prob", "noise_symbol", "source_loss_weight", "loss_tokens", "adam_eps"),
    *("preset", "device_batch", "batch"),
)


def choose(settings: Settings, own: BySource) -> None:
    """Set the values of the paper, over which the benchmark's `own` values have precedence.

    Raises:
        UserError: a setting for encoders is given.
    """
    if given := [name for name in _OF_ENCODERS if name in settings.given and getattr(settings, name)]:
        names = ", ".join(as_option(name) for name in given)
        raise UserError(f"{names} cannot be used with --method deltalm: leave it out")
    settings.preset = ""
    settings.give(own)
    settings.give({"DeltaLM, section 3.1": {"lr": "3e-4", "label_smoothing": "0.1", "weight_decay": "0"}})
    # The paper decodes with fairseq.
    search = f"--beam 5 --max-len-b {settings.longest} --early-stop fairseq"
    settings.take({"DeltaLM, section 3.1": {"warmup": 4000, "decoding": search}})


def plan(settings: Settings, pairs: Sequence[tuple[Path, Path]], directions: int) -> None:
    """Set batches and warm-up from the estimated number of updates. An epoch has one update per batch of tokens.

    The paper's batches are for tens of millions of pairs. Batches are made smaller if an epoch would have fewer than
    100. If the training is shorter than four times the paper's warm-up, a tenth of it is warm-up.

    Args:
        settings: the settings to complete.
        pairs: files of source and target.
        directions: the number of directions in which the pairs are trained.
    """
    expected = settings.updates or 0
    if pairs[0][0].exists():
        size = sum(max(path.stat().st_size for path in pair) for pair in pairs)  # bytes of the longer sides
        tokens = size // 4 * directions // len(pairs)
        if "accumulate" not in settings.given:
            settings.accumulate = min(settings.accumulate, max(1, tokens // (100 * settings.device_tokens)))
        expected = expected or settings.epochs * (tokens // (settings.device_tokens * settings.accumulate) + 1)
    settings.accumulate = -(-settings.accumulate // devices(cpu=settings.cpu))
    if "warmup" not in settings.given and expected < 4 * settings.warmup:
        settings.warmup = expected // 10
    settings.averaged = min(settings.averaged, settings.updates or settings.epochs)


def training(settings: Settings, folder: Path) -> list[str]:
    """Return the options of ``s2sft train`` except data and model; `folder` is the folder of the training."""
    updates, averaged = settings.updates, settings.averaged
    ending = options(max_epoch=settings.epochs)
    if updates:
        every = held_out_every(updates)
        every = 1 if averaged and every == updates else every
        ending = options(max_update=updates, validate_interval_updates=every, save_interval_updates=every)
        ending += options(keep_interval_updates=averaged or 1, validate_interval=NEVER)
    if averaged:
        ending += options(keep_last_epochs=averaged)  # checkpoints of updates lack the end of an epoch
    else:
        ending += options(no_epoch_checkpoints=True, save_interval=NEVER if updates else None)
    return [
        *options(max_source_positions=settings.max_source, max_target_positions=settings.max_target),
        *options(criterion="label_smoothed_cross_entropy", label_smoothing=settings.label_smoothing),
        *options(dropout=settings.dropout, optimizer="fused_adamw", adam_betas="(0.9, 0.98)", adam_eps="1e-8"),
        *options(weight_decay=settings.weight_decay, clip_norm="1.0", lr=settings.lr, lr_scheduler="inverse_sqrt"),
        *options(warmup_updates=max(1, settings.warmup)),
        *ending,
        *options(max_tokens=settings.device_tokens, update_freq=settings.accumulate),
        *saved(settings, folder),
    ]
