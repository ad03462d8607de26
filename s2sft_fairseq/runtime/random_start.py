"""A training that would begin with random weights, because nobody said what to begin with, is refused.

Whether there are weights to begin with is known when fairseq has looked for a checkpoint: one that is resumed, or that
of `--restore-file`, `--finetune-from-model` or `--continue-once`.
"""

import functools
import logging
from collections.abc import Callable

from fairseq.trainer import Trainer

from s2sft_fairseq.errors import UserError

logger = logging.getLogger(__name__)


def _require_weights(load_for_training: Callable) -> Callable:
    @functools.wraps(load_for_training)
    def load_checkpoint(trainer: Trainer, filename: str, *args: object, **kwargs: object) -> dict | None:
        extra_state = load_for_training(trainer, filename, *args, **kwargs)
        if extra_state is not None:
            return extra_state
        model = trainer.get_model()
        if not getattr(model, "has_random_weights", False):
            return extra_state
        count = sum(parameter.numel() for parameter in model.parameters())
        if not getattr(trainer.cfg.model, "random_init", False) and not getattr(
            trainer.task, "may_begin_at_random", False
        ):
            raise UserError(
                f"--pretrained is needed: a converted encoder or a checkpoint to begin with. Without it, and without a "
                f"checkpoint to resume ({filename} does not exist), {count:,} random weights would be trained; give "
                "--random-init if that is what you want"
            )
        logger.info(f"the training begins with {count:,} random weights")
        return extra_state

    return load_checkpoint


def apply() -> None:
    """Put the check around the trainer's loading."""
    Trainer.load_checkpoint = _require_weights(Trainer.load_checkpoint)
