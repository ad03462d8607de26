"""fairseq saves the state of a task but hands it back only when it generates; here also when a training is resumed."""

import functools
from collections.abc import Callable

from fairseq import checkpoint_utils
from fairseq.trainer import Trainer


def _hand_over_state(load_for_training: Callable) -> Callable:
    @functools.wraps(load_for_training)
    def load_checkpoint(
        trainer: Trainer, filename: str, reset_optimizer: bool = False, *args: object, **kwargs: object
    ) -> object:
        if reset_optimizer:  # a new training, which only begins with these weights
            return load_for_training(trainer, filename, reset_optimizer, *args, **kwargs)
        load_to_cpu = checkpoint_utils.load_checkpoint_to_cpu

        def load_checkpoint_to_cpu(*args: object, **options: object) -> dict:
            state = load_to_cpu(*args, **options)
            if "task_state" in state:
                trainer.task.load_state_dict(state["task_state"])
            return state

        checkpoint_utils.load_checkpoint_to_cpu = load_checkpoint_to_cpu
        try:
            return load_for_training(trainer, filename, reset_optimizer, *args, **kwargs)
        finally:
            checkpoint_utils.load_checkpoint_to_cpu = load_to_cpu

    return load_checkpoint


def apply() -> None:
    """Put the handing over around the trainer's loading."""
    Trainer.load_checkpoint = _hand_over_state(Trainer.load_checkpoint)
