"""Patches of an update that keep a GPU busy: fewer kernel launches, and numbers are read only when they are logged.

With ``--fp16`` or ``--amp``, the host reads the norm of each update, on which the loss scale depends. Otherwise it
reads numbers every ``--log-interval`` updates. Results on CPUs do not change.
"""

import logging
import math
import types
from collections.abc import Callable
from typing import Any

import torch
from fairseq import trainer as fairseq_trainer
from fairseq.logging import metrics
from fairseq.logging.meters import AverageMeter, type_as
from fairseq.optim import FP16Optimizer
from fairseq.trainer import Trainer
from torch import Tensor

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.runtime import Function, wrap

logger = logging.getLogger(__name__)

_NAMED = 5
"""Maximum number of parameters that an error names."""


def install() -> None:
    """Patch the optimizer of ``--fp16`` and ``--bf16``, and how `Trainer` checks and logs an update."""
    wrap(FP16Optimizer, "_sync_fp16_grads_to_fp32", _widen_gradients)
    wrap(FP16Optimizer, "_sync_fp32_params_to_fp16", _narrow_parameters)
    wrap(FP16Optimizer, "zero_grad", _zero_gradients)
    fairseq_trainer.torch = _torch_with_isfinite()
    wrap(Trainer, "clip_grad_norm", _clip)
    wrap(Trainer, "_check_grad_norms", _check_ranks)
    wrap(Trainer, "_reduce_and_log_stats", _log)
    wrap(AverageMeter, "update", _average)


def _widen_gradients(widen: Function, optimizer: FP16Optimizer) -> None:
    """Patch ``_sync_fp16_grads_to_fp32`` of fairseq/optim/fp16_optimizer.py: copy all gradients in one call."""
    if optimizer.has_flat_params or not optimizer._needs_sync:
        return widen(optimizer)
    pairs = []
    for parameter, wide in zip(optimizer.fp16_params, optimizer.fp32_params, strict=True):
        if not parameter.requires_grad:
            continue
        if wide.grad is None or parameter.grad is None:
            wide.grad = torch.zeros_like(wide)
        if parameter.grad is not None:
            pairs.append((wide.grad, parameter.grad))
    _copy(pairs)
    optimizer._needs_sync = False


def _narrow_parameters(narrow: Function, optimizer: FP16Optimizer) -> None:
    """Patch ``_sync_fp32_params_to_fp16`` of fairseq/optim/fp16_optimizer.py: copy all parameters in one call."""
    if optimizer.has_flat_params:
        return narrow(optimizer)
    pairs = zip(optimizer.fp16_params, optimizer.fp32_params, strict=True)
    _copy([(parameter.data, wide.data) for parameter, wide in pairs if parameter.requires_grad])


def _zero_gradients(zero: Function, optimizer: FP16Optimizer) -> None:
    """Patch ``zero_grad`` of fairseq/optim/fp16_optimizer.py: zero all gradients in one call."""
    if optimizer.has_flat_params:
        return zero(optimizer)
    wide = optimizer.fp32_params
    if gradients := [parameter.grad for parameter in wide if parameter.grad is not None]:
        torch._foreach_zero_(gradients)
    optimizer.fp32_params = []  # fairseq would zero their gradients one by one
    try:
        zero(optimizer)
    finally:
        optimizer.fp32_params = wide


def _copy(pairs: list[tuple[Tensor, Tensor]]) -> None:
    """Copy the second tensor of each pair into the first one."""
    if pairs:
        targets, sources = zip(*pairs, strict=True)
        torch._foreach_copy_(targets, sources)


def _torch_with_isfinite() -> types.ModuleType:
    """Return a copy of the module `torch` with `_isfinite` and `_tensor`, for fairseq/trainer.py."""
    module = types.ModuleType("torch")
    module.__dict__.update(vars(torch))
    module.isfinite = _isfinite  # type: ignore[attr-defined]
    module.tensor = _tensor  # type: ignore[attr-defined]
    return module


def _tensor(*args: Any, **options: Any) -> Tensor:
    """Replace `torch.tensor`: fairseq moves the norm of a skipped update to a GPU, even if there is none."""
    made = torch.tensor(*args, **options)
    if not torch.cuda.is_available():
        vars(made)["cuda"] = made.cpu
    return made


def _isfinite(x: Tensor) -> Tensor:
    """Replace `torch.isfinite`: norms that `_clip` checks later count as finite until then."""
    return torch.ones(x.shape, dtype=torch.bool) if hasattr(x, "is_looked_at_later") else torch.isfinite(x)


def _clip(clip: Callable[..., Tensor], trainer: Trainer, max_norm: float) -> Tensor:
    """Patch ``Trainer.clip_grad_norm`` of fairseq/trainer.py: on GPUs, check that norms are finite only when logging.

    fairseq checks before each step. If a norm is not finite, it runs a second pass that prints tensors, and ends the
    training. With this patch, the error on CPUs names the parameters. On GPUs the optimizer skips such a step itself,
    and the training ends when numbers are logged next.

    With ``--skip-nonfinite-updates``, such an update is skipped on CPUs, too: it is not counted, but its examples are
    consumed. All ranks have the same norm, and so do the same.

    Raises:
        UserError: on CPUs, gradients are infinite or NaN more often in a row than ``--skip-nonfinite-updates`` allows.
        OverflowError: on CPUs, the update is skipped; fairseq catches this.
        FloatingPointError: on GPUs, gradients were infinite or NaN since numbers were last logged, more often in a row
            than ``--skip-nonfinite-updates`` allows.
    """
    norm = clip(trainer, max_norm)
    optimizer = trainer.optimizer
    inner = getattr(optimizer, "fp32_optimizer", getattr(optimizer, "wrapped_optimizer", optimizer))
    if norm.device.type == "cpu" and not trainer.cfg.common.amp and not norm.isfinite():
        problem = _not_finite(trainer)
        if _left_out(trainer, problem):
            raise OverflowError("the update is left out")
        raise UserError(problem)
    if norm.device.type == "cpu":
        trainer.nonfinite = 0
    if norm.device.type == "cpu" or trainer.cfg.common.amp or not getattr(inner, "leaves_out_overflows", False):
        return norm
    # The sum of the norms is finite only if all of them are.
    trainer.sum_of_norms = norm + getattr(trainer, "sum_of_norms", 0.0)
    if _is_logged(trainer):
        total, trainer.sum_of_norms = float(trainer.sum_of_norms), 0.0
        problem = (
            f"gradients were NaN or infinite in one of the last {trainer.cfg.common.log_interval} updates "
            "(--log-interval), which was left out"
        )
        if math.isfinite(total):
            trainer.nonfinite = 0
        elif not _left_out(trainer, problem):
            raise FloatingPointError(problem)
    norm.is_looked_at_later = True  # type: ignore[attr-defined]
    return norm


def _left_out(trainer: Trainer, problem: str) -> bool:
    """Count an update whose gradients are not finite. If it may be skipped, log a warning and return True."""
    allowed = int(getattr(trainer.cfg.task, "skip_nonfinite_updates", 0))
    trainer.nonfinite = getattr(trainer, "nonfinite", 0) + 1
    if trainer.nonfinite > allowed:
        return False
    logger.warning(f"{problem}; left out, {trainer.nonfinite} of {allowed} in a row (--skip-nonfinite-updates)")
    return True


def _not_finite(trainer: Trainer) -> str:
    """Return a message that names the parameters whose gradients are NaN or infinite."""
    gradients = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
    names = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"gradients of update {trainer.get_num_updates() + 1} are NaN or infinite, of "
        f"{', '.join(names[:_NAMED]) or 'no single parameter'}{more}. A lower --lr or --clip-norm or a longer "
        "--warmup-updates may help; saved checkpoints are not affected"
    )


def _check_ranks(check: Function, trainer: Trainer, norm: Tensor) -> None:
    """Patch ``Trainer._check_grad_norms`` of fairseq/trainer.py: on GPUs, compare ranks only when logging."""
    if norm.device.type == "cpu" or _is_logged(trainer):
        check(trainer, norm)


def _log(log: Function, trainer: Trainer, logged: Any, sample_size: Any, norm: Any = None) -> dict[str, Any]:
    """Patch ``Trainer._reduce_and_log_stats`` of fairseq/trainer.py: on GPUs, keep numbers as tensors.

    fairseq copies two constants to the GPU, for which the host waits, and returns the rounded numbers of the update,
    which are not used. With this patch, the meters store tensors.
    """
    if not isinstance(norm, Tensor) or norm.device.type == "cpu":
        return log(trainer, logged, sample_size, norm)
    metrics.log_speed("ups", 1.0, priority=100, round=2)
    metrics.log_scalar("gnorm", norm, priority=400, round=3)
    if (limit := trainer.cfg.optimization.clip_norm) > 0:
        metrics.log_scalar("clip", 100.0 * (norm > limit), priority=500, round=1)
    trainer.tpu = True  # then fairseq does not return the rounded numbers
    try:
        return log(trainer, logged, sample_size)
    finally:
        trainer.tpu = False


def _average(update: Function, meter: AverageMeter, value: Any, weight: Any = 1) -> None:
    """Patch ``AverageMeter.update`` of fairseq/logging/meters.py: do not wait for the GPU to compare a weight with 0.

    The weights of flows are on the GPU; with several ranks all weights are.
    """
    if not isinstance(weight, Tensor) or weight.device.type == "cpu":
        return update(meter, value, weight)
    part = torch.where(weight > 0, value * weight, 0.0)
    meter.val = value
    meter.sum, meter.count = type_as(meter.sum, part) + part, type_as(meter.count, weight) + weight


def _is_logged(trainer: Trainer) -> bool:
    """Return whether the numbers of the current update are logged."""
    return (trainer.get_num_updates() + 1) % trainer.cfg.common.log_interval == 0
