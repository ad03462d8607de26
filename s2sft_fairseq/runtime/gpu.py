"""Patches for GPUs: bfloat16 where a GPU multiplies fast in it, and attention without cuDNN."""

import functools
import logging
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from omegaconf import DictConfig

from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.runtime import Function, wrap

logger = logging.getLogger(__name__)

FAST_BF16 = (8, 0)
"""The least compute capability of GPUs with matrix units for bfloat16."""
_PRECISIONS = ("fp16", "bf16", "memory_efficient_fp16", "memory_efficient_bf16", "amp")
_IGNORES_BF16 = "fairseq_cli.validate"


def install() -> None:
    """Choose the precision of every command, and let PyTorch attend by its own kernels.

    cuDNN's attention makes a plan for each new shape, and batches and decoding steps have ever new ones. PyTorch's
    setting holds for the whole process, and does not start CUDA.
    """
    torch.backends.cuda.enable_cudnn_sdp(False)
    wrap(distributed_utils, "call_main", _run)


def multiplies_bf16() -> bool:
    """Tell whether PyTorch has a GPU that multiplies fast in bfloat16; this starts CUDA."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= FAST_BF16


def choose_precision(cfg: DictConfig) -> None:
    """Set ``--bf16`` where a task of this package computes on a GPU that is fast in it and no precision was given.

    Raises:
        UserError: if ``--float32`` was given beside another precision.
    """
    if cfg.task is None or "float32" not in cfg.task:  # a task of another package
        return
    given = [as_option(name) for name in _PRECISIONS if cfg.common[name]]
    if cfg.task.float32:
        if given:
            raise UserError(f"--float32 and {' and '.join(given)} exclude each other: give one of them")
        return
    in_8_bits = cfg.task.get("quantize", "none") != "none"
    if given or in_8_bits or cfg.common.cpu or cfg.common.tpu or not multiplies_bf16():
        return
    cfg.common.bf16 = True
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    logger.info(
        f"--bf16 by default: this GPU (compute capability {capability}) has matrix units for bfloat16. A training that "
        "is resumed goes on in it too, whatever it began with. Give --float32 for float32"
    )


def _run(call: Function, cfg: DictConfig, main: Function, **options: Any) -> None:
    """Patch ``call_main`` of fairseq/distributed/utils.py, which runs a command: choose the precision of each process.

    Not before the process has its GPU: CUDA would start on the first one, in the process that starts the others too.
    """
    call(cfg, functools.partial(_in_precision, main), **options)


def _in_precision(main: Function, cfg: DictConfig, **options: Any) -> Any:
    if main.__module__ != _IGNORES_BF16:
        choose_precision(cfg)
    return main(cfg, **options)
