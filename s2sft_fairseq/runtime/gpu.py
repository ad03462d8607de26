"""Patches for GPUs: bfloat16 where a GPU multiplies fast in it, and attention without cuDNN."""

import logging
from typing import Any

import torch
from fairseq.trainer import Trainer

from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.runtime import Function, wrap

logger = logging.getLogger(__name__)

FAST_BF16 = (8, 0)
"""The least compute capability of GPUs with matrix units for bfloat16."""
_PRECISIONS = ("fp16", "bf16", "memory_efficient_fp16", "memory_efficient_bf16", "amp")


def install() -> None:
    """Choose the precision of a training, and let PyTorch attend by its own kernels.

    cuDNN's attention makes a plan for each new shape, and batches and decoding steps have ever new ones. PyTorch's
    setting holds for the whole process, and does not start CUDA.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    wrap(Trainer, "__init__", _make_trainer)


def multiplies_bf16() -> bool:
    """Tell whether PyTorch has a GPU that multiplies fast in bfloat16; this starts CUDA."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= FAST_BF16


def choose_precision(cfg: Any) -> None:
    """Set ``--bf16`` where a task of this package computes on a GPU that is fast in it and no precision was given.

    A training calls this when it makes its trainer, decoding when a model is made ready for it.

    Args:
        cfg: fairseq's configuration.

    Raises:
        UserError: if ``--float32`` was given beside another precision.
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
        "is resumed goes on in it too, whatever it began with. Give --float32 for float32"
    )


def _make_trainer(make: Function, trainer: Trainer, cfg: Any, *args: Any, **options: Any) -> None:
    """Patch ``Trainer.__init__`` of fairseq/trainer.py, which gives the model its precision.

    Not the command as a whole: it starts the processes of several GPUs, before it may use one itself.
    """
    if not getattr(trainer, "has_chosen_precision", False):
        choose_precision(cfg)
    make(trainer, cfg, *args, **options)
