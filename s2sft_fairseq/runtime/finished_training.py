"""A training that has made all of its updates stops at once; fairseq would make one more."""

import functools
import logging
from collections.abc import Callable
from typing import Any

from fairseq.trainer import Trainer
from fairseq_cli import train

logger = logging.getLogger(__name__)


def _stop_where_finished(train_epoch: Callable) -> Callable:
    @functools.wraps(train_epoch)
    def train_one_epoch(cfg: Any, trainer: Trainer, *others: object) -> tuple[list[float | None], bool]:
        done, wanted = trainer.get_num_updates(), cfg.optimization.max_update
        if not wanted or done < wanted:
            return train_epoch(cfg, trainer, *others)
        logger.warning(f"nothing is left to train: {done:,} updates are done, and --max-update is {wanted:,}")
        return [None], True

    return train_one_epoch


def apply() -> None:
    """Look before each epoch."""
    train.train = _stop_where_finished(train.train)
