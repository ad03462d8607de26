"""Patches of an update, so that a GPU never waits for the host: few launches, and numbers are read when logged.

Of an update with ``--fp16`` or ``--amp`` the host reads the norm, which the loss scale follows. Otherwise it reads
numbers every ``--log-interval`` updates. CPUs compute what they did before.
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
"""Parameters that an error names at most."""


def install() -> None:
    """Patch the optimizer of ``--fp16`` and ``--bf16``, and what `Trainer` reads of an update."""
    wrap(FP16Optimizer, "_sync_fp16_grads_to_fp32", _widen_gradients)
    wrap(FP16Optimizer, "_sync_fp32_params_to_fp16", _narrow_parameters)
    wrap(FP16Optimizer, "zero_grad", _zero_gradients)
    fairseq_trainer.torch = _torch_with_isfinite()
    wrap(Trainer, "clip_grad_norm", _clip)
    wrap(Trainer, "_check_grad_norms", _check_ranks)
    wrap(Trainer, "_reduce_and_log_stats", _log)
    wrap(AverageMeter, "update", _average)


def _widen_gradients(widen: Function, optimizer: FP16Optimizer) -> None:
    """Patch ``_sync_fp16_grads_to_fp32`` of fairseq/optim/fp16_optimizer.py: copy a list of gradients, not each."""
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
    """Patch ``_sync_fp32_params_to_fp16`` of fairseq/optim/fp16_optimizer.py likewise."""
    if optimizer.has_flat_params:
        return narrow(optimizer)
    pairs = zip(optimizer.fp16_params, optimizer.fp32_params, strict=True)
    _copy([(parameter.data, wide.data) for parameter, wide in pairs if parameter.requires_grad])


def _zero_gradients(zero: Function, optimizer: FP16Optimizer) -> None:
    """Patch ``zero_grad`` of fairseq/optim/fp16_optimizer.py likewise."""
    if optimizer.has_flat_params:
        return zero(optimizer)
    wide = optimizer.fp32_params
    if gradients := [parameter.grad for parameter in wide if parameter.grad is not None]:
        torch._foreach_zero_(gradients)
    optimizer.fp32_params = []  # whose gradients fairseq would zero one by one
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
    """Return PyTorch as a module of its own with `_isfinite`, for ``Trainer.train_step`` of fairseq/trainer.py."""
    module = types.ModuleType("torch")
    module.__dict__.update(vars(torch))
    module.isfinite = _isfinite  # type: ignore[attr-defined]
    module.tensor = _tensor  # type: ignore[attr-defined]
    return module


def _tensor(*args: Any, **options: Any) -> Tensor:
    """Stand in for `torch.tensor`: fairseq puts the norm of an update that is left out on a GPU, even without one."""
    made = torch.tensor(*args, **options)
    if not torch.cuda.is_available():
        vars(made)["cuda"] = made.cpu
    return made


def _isfinite(x: Tensor) -> Tensor:
    """Stand in for `torch.isfinite`: what `_clip` looks at later counts as finite until then."""
    return torch.ones(x.shape, dtype=torch.bool) if hasattr(x, "is_looked_at_later") else torch.isfinite(x)


def _clip(clip: Callable[..., Tensor], trainer: Trainer, max_norm: float) -> Tensor:
    """Patch ``Trainer.clip_grad_norm`` of fairseq/trainer.py: ask whether norms are finite when numbers are logged.

    fairseq asks before each step, and ends the training behind a second pass that prints tensors. On CPUs the error
    names the parameters. On GPUs the optimizer leaves such a step out by itself, and the training ends at the next
    numbers.

    With ``--skip-nonfinite-updates`` such an update is left out on CPUs too: it is not counted, and its examples are
    read. All ranks have the same norm, and do the same.

    Raises:
        UserError: on CPUs, if gradients are infinite or no numbers, and more often in a row than may be.
        OverflowError: on CPUs, if the update is left out; fairseq catches it.
        FloatingPointError: on GPUs, if those of an update since the last numbers were.
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
    # A sum is finite where all that were added to it are.
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
    """Count an update whose gradients are not finite; tell whether it may be left out, and warn."""
    allowed = int(getattr(trainer.cfg.task, "skip_nonfinite_updates", 0))
    trainer.nonfinite = getattr(trainer, "nonfinite", 0) + 1
    if trainer.nonfinite > allowed:
        return False
    logger.warning(f"{problem}; left out, {trainer.nonfinite} of {allowed} in a row (--skip-nonfinite-updates)")
    return True


def _not_finite(trainer: Trainer) -> str:
    """Return which parameters have gradients that are NaN or infinite."""
    gradients = {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}
    names = [name for name, gradient in gradients.items() if not gradient.isfinite().all()]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return (
        f"gradients of update {trainer.get_num_updates() + 1} are NaN or infinite, of "
        f"{', '.join(names[:_NAMED]) or 'no single parameter'}{more}. A lower --lr or --clip-norm or a longer "
        "--warmup-updates may help; what was saved before is whole"
    )


def _check_ranks(check: Function, trainer: Trainer, norm: Tensor) -> None:
    """Patch ``Trainer._check_grad_norms`` of fairseq/trainer.py: on GPUs compare ranks when numbers are logged."""
    if norm.device.type == "cpu" or _is_logged(trainer):
        check(trainer, norm)


def _log(log: Function, trainer: Trainer, logged: Any, sample_size: Any, norm: Any = None) -> dict[str, Any]:
    """Patch ``Trainer._reduce_and_log_stats`` of fairseq/trainer.py: on GPUs numbers stay there.

    fairseq copies two constants to the GPU, for which the host waits, and returns the numbers of the update rounded,
    which nobody reads. The meters keep tensors.
    """
    if not isinstance(norm, Tensor) or norm.device.type == "cpu":
        return log(trainer, logged, sample_size, norm)
    metrics.log_speed("ups", 1.0, priority=100, round=2)
    metrics.log_scalar("gnorm", norm, priority=400, round=3)
    if (limit := trainer.cfg.optimization.clip_norm) > 0:
        metrics.log_scalar("clip", 100.0 * (norm > limit), priority=500, round=1)
    trainer.tpu = True  # for which fairseq returns nothing
    try:
        return log(trainer, logged, sample_size)
    finally:
        trainer.tpu = False


def _average(update: Function, meter: AverageMeter, value: Any, weight: Any = 1) -> None:
    """Patch ``AverageMeter.update`` of fairseq/logging/meters.py: do not ask a GPU whether a weight is 0.

    Weights of flows are there, and all weights are where there are several ranks.
    """
    if not isinstance(weight, Tensor) or weight.device.type == "cpu":
        return update(meter, value, weight)
    part = torch.where(weight > 0, value * weight, 0.0)
    meter.val = value
    meter.sum, meter.count = type_as(meter.sum, part) + part, type_as(meter.count, weight) + weight


def _is_logged(trainer: Trainer) -> bool:
    """Tell whether the numbers of the update at hand are logged."""
    return (trainer.get_num_updates() + 1) % trainer.cfg.common.log_interval == 0
