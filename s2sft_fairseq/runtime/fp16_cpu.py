"""`--fp16` and `--amp` without a GPU, and `--fp16` with an optimizer that treats parameters differently.

With `--fp16` fairseq asks for the current CUDA device even on the CPU, and again when a gradient overflows; it makes
one flat parameter of all, of which `fused_adamw` could not leave biases out of the decay. With `--amp` on the CPU it
trains in 32 bits and does not say so.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from fairseq.optim import AMPOptimizer, FP16Optimizer
from fairseq.trainer import Trainer

logger = logging.getLogger(__name__)


def _flatten_on_cpu(build: Callable) -> Callable:
    @functools.wraps(build)
    def build_fp32_params(args: object, params: list[torch.nn.Parameter], flatten: bool = True) -> dict | list:
        """One flat 32-bit copy of all parameters; fairseq keeps it under its device's index, None on the CPU."""
        if params[0].device.type != "cpu":
            return build(args, params, flatten)
        if params[0].dtype == torch.float16:
            logger.warning("--fp16 on the CPU is slower than 32 bits: leave it out, or use --bf16")
        if not flatten:
            return build(args, params, flatten)
        flat = torch.nn.Parameter(torch.cat([parameter.detach().float().reshape(-1) for parameter in params]))
        flat.grad = torch.zeros_like(flat)
        return {None: flat}

    return build_fp32_params


def _keep_parameters_apart(build: Callable) -> Callable:
    @functools.wraps(build)
    def build_optimizer(cfg: Any, params: list[torch.nn.Parameter], **kwargs: object) -> FP16Optimizer:
        if cfg.optimizer._name == "fused_adamw" and cfg.optimizer.weight_decay:
            cfg.common.fp16_no_flatten_grads = True
        return build(cfg, params, **kwargs)

    return build_optimizer


def _overflow_on_cpu(train: Callable) -> Callable:
    @functools.wraps(train)
    def train_step(trainer: Trainer, *args: object, **kwargs: object) -> object:
        if trainer.cuda:
            return train(trainer, *args, **kwargs)
        # fairseq puts the norm of an overflowed gradient, which is 0, on the GPU.
        to_gpu, torch.Tensor.cuda = torch.Tensor.cuda, lambda tensor: tensor
        try:
            return train(trainer, *args, **kwargs)
        finally:
            torch.Tensor.cuda = to_gpu

    return train_step


def _say_that_amp_is_off(build: Callable) -> Callable:
    @functools.wraps(build)
    def build_optimizer(cfg: object, params: list[torch.nn.Parameter], **kwargs: object) -> AMPOptimizer:
        if params[0].device.type == "cpu":
            logger.warning("--amp has no effect on the CPU, training runs in 32 bits: use --bf16 for 16 bits")
        return build(cfg, params, **kwargs)

    return build_optimizer


def apply() -> None:
    """Make `--fp16` train on the CPU as it does on a GPU, with every optimizer, and say what `--amp` does there."""
    FP16Optimizer.build_fp32_params = staticmethod(_flatten_on_cpu(FP16Optimizer.build_fp32_params))
    FP16Optimizer.build_optimizer = staticmethod(_keep_parameters_apart(FP16Optimizer.build_optimizer))
    AMPOptimizer.build_optimizer = staticmethod(_say_that_amp_is_off(AMPOptimizer.build_optimizer))
    Trainer.train_step = _overflow_on_cpu(Trainer.train_step)
