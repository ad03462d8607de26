"""Patches for the CPU: several training processes, 16 bits, and the memory that PyTorch frees.

The C library returns every large block that PyTorch frees on the CPU to the kernel at once. The kernel provides and
zeroes the next block page by page, which takes up to a third of the time of a training. So this module makes glibc keep
freed memory, except blocks of 256 MiB and more: these, such as the gradient of a large embedding, would leave holes
that smaller blocks fill.

Batches differ in size, and small blocks that stay allocated (glibc and NumPy keep a few of each size) lie between the
large ones. This fragments the free memory: more and more of it is too short for the next batch, and the process grows
for hours. So free pages are returned to the kernel when they exceed half of the memory that a step needs.
"""

import ctypes
import functools
import logging
import os
import platform
from collections.abc import Callable
from typing import Any

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.models import distributed_fairseq_model
from fairseq.optim import AMPOptimizer, FP16Optimizer
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.trainer import Trainer
from omegaconf import DictConfig

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.modules.cpu_linear import multiplies_bf16
from s2sft_fairseq.runtime import Function, wrap

logger = logging.getLogger(__name__)

# Parameters of mallopt(3), and the environment variables with which a user sets them.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_OF_THE_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_", "MALLOC_MMAP_THRESHOLD_")
# Bytes.
_NEVER, _GROWTH, _LARGE = (1 << 31) - 1, 64 << 20, 256 << 20
_SLACK = 1.5
"""Limit of the growth of the resident memory, as a multiple of the memory that one step needs."""


def install() -> None:
    """Keep freed memory, and make every precision and several processes work on the CPU as on a GPU."""
    if platform.libc_ver()[0] == "glibc" and not _has_settings_of_the_user():
        _keep_freed_memory()
    wrap(distributed_utils, "call_main", _run)
    distributed_fairseq_model.DistributedDataParallel = DistributedDataParallel
    wrap(FP16Optimizer, "build_fp32_params", _build_fp32_params)
    wrap(FP16Optimizer, "build_optimizer", _build_fp16_optimizer)
    wrap(AMPOptimizer, "build_optimizer", _build_amp_optimizer)
    wrap(FairseqTask, "train_step", _step_with_autocast)
    wrap(Trainer, "train_step", _train_step)


class Holes:
    """Watches the memory of the process after each step, and returns free memory to the kernel if there is too much."""

    def __init__(self, resident: Callable[[], int], give_back: Callable[[], Any]) -> None:
        """Store the functions that return the resident memory in bytes, and that give free memory to the kernel."""
        self._resident, self._give_back = resident, give_back
        self._least = self._needed = 0
        self._is_first = False

    def after_step(self) -> None:
        """Check the memory at the end of a step, when temporary tensors are freed."""
        grown = self._resident() - self._least
        if self._is_first:  # the first step after memory was given back has touched only the memory that it needs
            self._needed = max(self._needed, grown)
            self._is_first = False
        if grown > _SLACK * self._needed:
            self._give_back()
            self._least, self._is_first = self._resident(), True


def _keep_freed_memory() -> None:
    """Configure glibc's allocator, and patch the steps of `FairseqTask` (fairseq/tasks/fairseq_task.py) to watch it."""
    libc = ctypes.CDLL(None)
    libc.mallopt(_MMAP_THRESHOLD, _LARGE)
    libc.mallopt(_TRIM_THRESHOLD, _NEVER)
    libc.mallopt(_TOP_PAD, _GROWTH)
    holes = Holes(_resident_memory, functools.partial(libc.malloc_trim, 0))

    def watch(step: Function, *args: Any, **options: Any) -> Any:
        result = step(*args, **options)
        holes.after_step()
        return result

    for step in ("train_step", "valid_step", "inference_step"):
        wrap(FairseqTask, step, watch)


def _resident_memory() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _has_settings_of_the_user() -> bool:
    """Return whether the user configured the allocator, or uses another one."""
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    return "LD_PRELOAD" in os.environ or "glibc.malloc" in tunables or any(name in os.environ for name in _OF_THE_USER)


def _run(call: Function, cfg: DictConfig, main: Function, **options: Any) -> None:
    """Patch ``call_main`` of fairseq/distributed/utils.py, which runs a command: call `configure` first."""
    configure(cfg)
    call(cfg, main, **options)


def configure(cfg: DictConfig) -> None:
    """Set up `cfg.distributed_training` if the command runs on the CPU; do nothing for a GPU or TPU.

    fairseq starts one process per GPU. Without a GPU it starts none and trains nothing, or divides by zero. Under
    torchrun without ``--distributed-world-size``, it lets every process train alone, and all write the same
    checkpoints.

    Raises:
        UserError: several processes are requested, but nothing would start them.
    """
    if cfg.common.tpu or (torch.cuda.is_available() and not cfg.common.cpu):
        return
    training = cfg.distributed_training
    started = _torchrun_world_size()
    if started > 1 and training.distributed_init_method is None and training.distributed_world_size in (1, started):
        training.distributed_world_size = started
        training.distributed_rank = int(os.environ["RANK"])
        training.distributed_init_method = "env://"
        training.distributed_no_spawn = True
    size = training.distributed_world_size
    if size == 1 and training.distributed_init_method is None:
        return
    if not training.distributed_no_spawn:
        raise UserError(
            f"--distributed-world-size {size} on the CPU: fairseq starts one process a GPU, so it would start none. "
            f"Start them with torchrun --nproc_per_node {max(size, started)} -m s2sft_fairseq train ... (without "
            "--distributed-* options), or start each yourself with --distributed-no-spawn, --distributed-rank and "
            "--distributed-init-method; or train in one process with --distributed-world-size 1"
        )
    if training.distributed_backend == "nccl":  # fairseq's default, for GPUs alone
        training.distributed_backend = "gloo"


def _torchrun_world_size() -> int:
    """Return the number of processes that torchrun started together with this one; 1 without torchrun."""
    names = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in names) else 1


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """PyTorch's class, without device numbers for a model on the CPU.

    fairseq/models/distributed_fairseq_model.py passes device numbers also for the CPU.
    """

    def __init__(
        self, module: torch.nn.Module, device_ids: list[int] | None, output_device: int | None, **options: Any
    ):
        if next(module.parameters()).device.type == "cpu":
            device_ids = output_device = None
        super().__init__(module=module, device_ids=device_ids, output_device=output_device, **options)


def _build_fp32_params(
    build: Function, args: Any, params: list[torch.nn.Parameter], flatten: bool = True
) -> dict[Any, torch.nn.Parameter] | list[torch.nn.Parameter]:
    """Patch ``FP16Optimizer.build_fp32_params`` of fairseq/optim/fp16_optimizer.py: ``--fp16`` without a GPU.

    fairseq asks for the current CUDA device. It stores the flat 32-bit copy of all parameters under the index of its
    device; on the CPU this is None.
    """
    if params[0].device.type != "cpu":
        return build(args, params, flatten)
    if params[0].dtype == torch.float16:
        logger.warning("--fp16 on the CPU is slower than 32 bits: leave it out, or use --bf16")
    if not flatten:
        return build(args, params, flatten)
    flat = torch.nn.Parameter(torch.cat([parameter.detach().float().reshape(-1) for parameter in params]))
    flat.grad = torch.zeros_like(flat)
    return {None: flat}


def _build_fp16_optimizer(build: Function, cfg: Any, params: list[torch.nn.Parameter], **options: Any) -> FP16Optimizer:
    """Patch ``FP16Optimizer.build_optimizer`` of fairseq/optim/fp16_optimizer.py: do not flatten the parameters.

    fairseq makes one flat parameter of all, so that ``fused_adamw`` could not leave biases out of the decay.
    """
    if cfg.optimizer._name == "fused_adamw" and cfg.optimizer.weight_decay:
        cfg.common.fp16_no_flatten_grads = True
    return build(cfg, params, **options)


def _build_amp_optimizer(build: Function, cfg: Any, params: list[torch.nn.Parameter], **options: Any) -> AMPOptimizer:
    """Patch ``AMPOptimizer.build_optimizer`` of fairseq/optim/amp_optimizer.py: warn if ``--amp`` has no effect."""
    if params[0].device.type == "cpu" and not multiplies_bf16():
        logger.warning(
            "--amp has no effect: this CPU has no instructions for bfloat16 (AMX, AVX512-BF16), and trains in 32 bits"
        )
    return build(cfg, params, **options)


def _step_with_autocast(
    step: Function,
    task: FairseqTask,
    sample: Any,
    model: Any,
    criterion: Any,
    optimizer: Any,
    *args: Any,
    **options: Any,
) -> Any:
    """Patch ``FairseqTask.train_step`` of fairseq/tasks/fairseq_task.py: ``--amp`` on the CPU.

    fairseq turns PyTorch's autocast on for GPUs only. On the CPU, the factors of products are in bfloat16, which has
    the range of float32, so that no loss scale is needed. A CPU without instructions for bfloat16 would take many times
    as long as in 32 bits, so it trains in 32 bits.
    """
    is_on_cpu = isinstance(optimizer, AMPOptimizer) and next(model.parameters()).device.type == "cpu"
    with torch.autocast("cpu", torch.bfloat16, enabled=is_on_cpu and multiplies_bf16()):
        return step(task, sample, model, criterion, optimizer, *args, **options)


def _train_step(train: Function, trainer: Trainer, *args: Any, **options: Any) -> Any:
    """Patch ``Trainer.train_step`` of fairseq/trainer.py: make `Tensor.cuda` return the tensor itself on the CPU.

    When gradients overflow, fairseq moves their norm, then 0, to the GPU.
    """
    if trainer.cuda:
        return train(trainer, *args, **options)
    tensors: Any = torch.Tensor
    to_gpu, tensors.cuda = tensors.cuda, lambda tensor: tensor
    try:
        return train(trainer, *args, **options)
    finally:
        tensors.cuda = to_gpu
