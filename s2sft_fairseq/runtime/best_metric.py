"""A `--best-checkpoint-metric` that is not measured: fairseq says no more than a `KeyError`, after a whole epoch."""

import functools
from collections.abc import Callable
from typing import Any

from fairseq_cli import train

from s2sft_fairseq.errors import UserError


def _require_metric(get_stats: Callable) -> Callable:
    @functools.wraps(get_stats)
    def get_valid_stats(cfg: Any, trainer: object, stats: dict[str, Any], *others: object) -> dict[str, Any]:
        metric = cfg.checkpoint.best_checkpoint_metric
        if metric not in stats:
            raise UserError(f"--best-checkpoint-metric must be one of {', '.join(sorted(stats))}, but is {metric}")
        return get_stats(cfg, trainer, stats, *others)

    return get_valid_stats


def apply() -> None:
    """Look for the metric first."""
    train.get_valid_stats = _require_metric(train.get_valid_stats)
