"""Several training processes on the CPU.

fairseq starts one process a GPU. Without a GPU it starts none and trains nothing, or fails on a division by zero; and
under torchrun without `--distributed-world-size` it lets every process train alone, all writing the same checkpoints.
"""

import functools
import os
from collections.abc import Callable

import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.models import distributed_fairseq_model
from omegaconf import DictConfig

from s2sft_fairseq.errors import UserError

_NEEDS_A_GPU = ("fully_sharded", "slowmo")


def _torchrun_world_size() -> int:
    """The number of processes that torchrun started together with this one; 1 without torchrun."""
    names = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE")
    return int(os.environ["WORLD_SIZE"]) if all(name in os.environ for name in names) else 1


def configure(cfg: DictConfig) -> None:
    """Set up `cfg.distributed_training` for the CPU, where the command runs there; leave it alone on a GPU or TPU.

    Raises:
        UserError: more than one process is asked for, but nothing would start them; or a GPU-only back end.
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
    if training.ddp_backend in _NEEDS_A_GPU:
        raise UserError(f"--ddp-backend {training.ddp_backend} needs a GPU: use pytorch_ddp or legacy_ddp on the CPU")
    if training.distributed_backend == "nccl":  # fairseq's default, for GPUs alone
        training.distributed_backend = "gloo"


def _configured(call: Callable) -> Callable:
    @functools.wraps(call)
    def call_main(cfg: DictConfig, main: Callable, **kwargs: object) -> None:
        configure(cfg)
        call(cfg, main, **kwargs)

    return call_main


class DistributedDataParallel(torch.nn.parallel.DistributedDataParallel):
    """PyTorch's, without the device numbers that fairseq gives for a model on the CPU too."""

    def __init__(
        self, module: torch.nn.Module, device_ids: list[int] | None, output_device: int | None, **kwargs: object
    ):
        if next(module.parameters()).device.type == "cpu":
            device_ids = output_device = None
        super().__init__(module=module, device_ids=device_ids, output_device=output_device, **kwargs)


def apply() -> None:
    """Check and complete the options of every distributed command, and let `pytorch_ddp` run on the CPU."""
    distributed_utils.call_main = _configured(distributed_utils.call_main)
    distributed_fairseq_model.DistributedDataParallel = DistributedDataParallel
