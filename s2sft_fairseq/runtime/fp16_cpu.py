"""`--fp16` and `--amp` without a GPU.

With `--fp16` fairseq asks for the current CUDA device even on the CPU; with `--amp` it trains in 32 bits and does not
say so.
"""

import functools
import logging
from collections.abc import Callable

import torch
from fairseq.optim import AMPOptimizer, FP16Optimizer

logger = logging.getLogger(__name__)


def _flatten_on_cpu(build: Callable) -> Callable:
    @functools.wraps(build)
    def build_fp32_params(args: object, params: list[torch.nn.Parameter], flatten: bool = True) -> dict | list:
        """One flat 32-bit copy of all parameters; fairseq keeps it under its device's index, None on the CPU."""
        if not flatten or params[0].device.type != "cpu":
            return build(args, params, flatten)
        logger.warning("--fp16 on the CPU is slower than 32 bits: leave it out, or use --bf16")
        flat = torch.nn.Parameter(torch.cat([parameter.detach().float().reshape(-1) for parameter in params]))
        flat.grad = torch.zeros_like(flat)
        return {None: flat}

    return build_fp32_params


def _say_that_amp_is_off(build: Callable) -> Callable:
    @functools.wraps(build)
    def build_optimizer(cfg: object, params: list[torch.nn.Parameter], **kwargs: object) -> AMPOptimizer:
        if params[0].device.type == "cpu":
            logger.warning("--amp has no effect on the CPU, training runs in 32 bits: use --bf16 for 16 bits")
        return build(cfg, params, **kwargs)

    return build_optimizer


def apply() -> None:
    """Make `--fp16` train on the CPU as it does on a GPU, and say what `--amp` does there."""
    FP16Optimizer.build_fp32_params = staticmethod(_flatten_on_cpu(FP16Optimizer.build_fp32_params))
    AMPOptimizer.build_optimizer = staticmethod(_say_that_amp_is_off(AMPOptimizer.build_optimizer))
