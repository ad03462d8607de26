"""Patches for GPUs: bfloat16 by default on GPUs with matrix units for it, and attention without cuDNN."""

import logging
from typing import Any

import torch
from fairseq.trainer import Trainer

from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.runtime import Function, wrap

logger = logging.getLogger(__name__)

FAST_BF16 = (8, 0)
"""The lowest compute capability of GPUs with matrix units for bfloat16."""
_PRECISIONS = ("fp16", "bf16", "memory_efficient_fp16", "memory_efficient_bf16", "amp")


def install() -> None:
    """Choose the precision of a training, and turn off cuDNN's attention.

    cuDNN's attention makes a plan for each new shape, and most batches and decoding steps have a new one. The setting
    applies to the whole process, and does not initialize CUDA.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    wrap(Trainer, "__init__", _make_trainer)


def multiplies_bf16() -> bool:
    """Return whether there is a GPU with matrix units for bfloat16; this initializes CUDA."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= FAST_BF16


def choose_precision(cfg: Any) -> None:
    """Set ``--bf16`` if a task of this package runs on a GPU that is fast in it, and no precision was given.

    Training calls this before it creates the trainer, decoding when it prepares a model.

    Args:
        cfg: fairseq's configuration.

    Raises:
        UserError: ``--float32`` was given together with another precision.
    """
    in_32_bits = getattr(cfg.task, "float32", None)
    if in_32_bits is None:  # a task of another package
        return
    given = [as_option(name) for name in _PRECISIONS if getattr(cfg.common, name)]
    if in_32_bits:
        if given:
            raise UserError(f"--float32 and {' and '.join(given)} exclude each other: give one of them")
        return
    in_8_bits = str(getattr(cfg.task, "quantize", "none")) != "none"
    if given or in_8_bits or cfg.common.cpu or cfg.common.tpu or not multiplies_bf16():
        return
    cfg.common.bf16 = True
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    logger.info(
        f"--bf16 by default: this GPU (compute capability {capability}) has matrix units for bfloat16. A training that "
        "is resumed also continues in bfloat16, even if it began in another precision. Give --float32 for float32"
    )


def _make_trainer(make: Function, trainer: Trainer, cfg: Any, *args: Any, **options: Any) -> None:
    """Patch ``Trainer.__init__`` of fairseq/trainer.py, which converts the model to its precision.

    The command itself cannot be patched for this: it starts the processes of several GPUs, and must not initialize CUDA
    before.
    """
    if not getattr(trainer, "has_chosen_precision", False):
        choose_precision(cfg)
    make(trainer, cfg, *args, **options)
