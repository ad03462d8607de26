"""Patches for models that do not fit on one GPU: ``--ddp-backend fully_sharded`` is PyTorch's FSDP2.

In fairseq this name means fairscale, which is no longer developed. With these patches, every rank keeps a shard of each
parameter, of its gradient and of its moments, in 32 bits. A layer is gathered when it is computed. With ``--bf16`` it
computes in bfloat16, and gradients are summed in 32 bits. Checkpoints are the same as those of one process.
"""

import contextlib
import logging
import sys
from typing import Any

import torch
from fairseq import utils
from fairseq.distributed import utils as distributed_utils
from fairseq.trainer import Trainer
from fairseq_cli import train
from omegaconf import DictConfig
from torch import Tensor, nn

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.runtime import Function, wrap
from s2sft_fairseq.runtime.gpu import choose_precision

logger = logging.getLogger(__name__)

_BACKEND = "fully_sharded"


def install() -> None:
    """Refuse options that need fairscale, and train sharded models with `ShardedTrainer`."""
    wrap(distributed_utils, "call_main", _run)
    # fairscale's wrapper, which fairseq_cli/train.py puts around the model.
    train.fsdp_enable_wrap = lambda cfg: contextlib.nullcontext()
    train.Trainer = _make_trainer


def _run(call: Function, cfg: DictConfig, main: Function, **options: Any) -> None:
    """Patch ``call_main`` of fairseq/distributed/utils.py, which runs a command: call `check` first."""
    check(cfg)
    call(cfg, main, **options)


def check(cfg: DictConfig) -> None:
    """Check that no option needs fairscale, and that all are compatible with sharded parameters if those are requested.

    Raises:
        UserError: lists all other options.
    """
    training = cfg.distributed_training
    problems = []
    if training.ddp_backend == "slowmo":
        problems.append("--ddp-backend slowmo is not supported: use pytorch_ddp")
    if training.zero_sharding != "none":
        problems.append(
            f"--zero-sharding {training.zero_sharding} is not supported: use --ddp-backend {_BACKEND}, which shards "
            "the optimizer's state too"
        )
    if training.ddp_backend == _BACKEND:
        optimizer = getattr(cfg.optimizer, "_name", "fused_adamw")  # commands that do not train have none
        if optimizer != "fused_adamw":
            problems.append(f"--ddp-backend {_BACKEND} needs --optimizer fused_adamw, but it is {optimizer}")
        refused = {
            "--fp16": cfg.common.fp16,
            "--amp": cfg.common.amp,
            "--memory-efficient-bf16": cfg.common.memory_efficient_bf16,
            "--factored-moments": getattr(cfg.optimizer, "factored_moments", False),
            "--cpu-offload": training.cpu_offload,
            "--use-sharded-state": training.use_sharded_state,
            "--use-bmuf": cfg.optimization.use_bmuf,
            "--store-ema": cfg.ema.store_ema,
            "--eval-bleu": getattr(cfg.task, "eval_bleu", False),
        }
        excluded = [option for option, given in refused.items() if given]
        if excluded:
            problems.append(f"--ddp-backend {_BACKEND} excludes {', '.join(excluded)}; for 16 bits give --bf16")
    if problems:
        raise UserError.of(problems)


def _make_trainer(cfg: DictConfig, *args: Any) -> Trainer:
    """Replace `Trainer` in fairseq_cli/train.py. With one process, do not shard."""
    training = cfg.distributed_training
    if training.ddp_backend == _BACKEND and training.distributed_world_size == 1:
        logger.info(f"--ddp-backend {_BACKEND}: nothing is sharded, for there is one process")
        training.ddp_backend = "pytorch_ddp"
    return (ShardedTrainer if training.ddp_backend == _BACKEND else Trainer)(cfg, *args)


class ShardedTrainer(Trainer):
    """fairseq's trainer for a model whose parameters are sharded among the ranks.

    The model is loaded completely on the CPU, and sharded when fairseq builds the optimizer, its next step.
    """

    is_fsdp = False  # this means fairscale's FSDP
    has_chosen_precision = True  # in `__init__`, before that of fairseq's trainer

    def __init__(self, cfg: DictConfig, *args: Any) -> None:
        choose_precision(cfg)
        self._dtype = torch.bfloat16 if cfg.common.bf16 else None
        self._whole_state: dict[str, Any] | None = None
        cfg.common.bf16 = False  # fairseq would convert the model to bfloat16, and keep a copy in 32 bits
        super().__init__(cfg, *args)

    @property
    def model(self) -> nn.Module:
        """The model, which needs no wrapper."""
        return self._model

    def _build_optimizer(self) -> None:
        from torch.distributed.fsdp import FSDPModule

        if not isinstance(self._model, FSDPModule):
            shard(self._model, self.device, self._dtype)
        super()._build_optimizer()
        self.optimizer.optimizer.register_load_state_dict_pre_hook(_shard_state)

    def clip_grad_norm(self, clip_norm: float) -> Tensor:
        """Clip by the norm of the gradients over all ranks."""

        def of_all_ranks(norm: Tensor) -> Tensor:
            squared = norm.square()
            torch.distributed.all_reduce(squared, group=self.data_parallel_process_group)
            return squared.sqrt()

        return self.optimizer.clip_grad_norm(clip_norm, of_all_ranks)

    def consolidate_optimizer(self) -> None:
        """Gather the whole state on the first rank. Every rank calls this before a checkpoint is saved.

        After an exception nothing is gathered: it may be on one rank only, and the others would not take part.
        """
        super().consolidate_optimizer()
        self._whole_state = None if sys.exc_info()[0] else gather(super().state_dict(), self.is_data_parallel_master)

    def state_dict(self) -> dict[str, Any] | None:
        """Return the gathered state, and forget it."""
        state, self._whole_state = self._whole_state, None
        return state

    def save_checkpoint(self, filename: str, extra_state: dict[str, Any]) -> str | None:
        """Save the gathered state, if there is one."""
        return super().save_checkpoint(filename, extra_state) if self._whole_state else None


def shard(model: nn.Module, device: torch.device, dtype: torch.dtype | None) -> None:
    """Shard the parameters of a model among the ranks, in place: first each layer, then all other parameters.

    Args:
        model: a model on the CPU, equal on all ranks.
        device: the device of the shards and of the computation.
        dtype: the type of the computation; None: the type of the parameters.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    attributes = {name: vars(parameter) for name, parameter in model.named_parameters()}  # `param_group`
    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)
    layers = [layer for module in model.modules() if isinstance(module, nn.ModuleList) for layer in module]
    for module in (*layers, model):
        fully_shard(module, mesh=mesh, mp_policy=policy)
    for name, parameter in model.named_parameters():
        vars(parameter).update(attributes[name])
    logger.info(
        f"--ddp-backend {_BACKEND}: {len(layers)} layers and all other parameters are sharded on {mesh.size()} ranks"
    )


def gather(state: dict[str, Any], keep: bool) -> dict[str, Any]:
    """Gather sharded tensors on the CPU. Every rank must call this.

    Args:
        state: nested containers with the tensors. A tensor that occurs twice is gathered into one tensor.
        keep: whether this rank keeps the result; else its sharded tensors become None.
    """
    from torch.distributed.tensor import DTensor

    known: dict[int, Tensor] = {}

    def whole(tensor: Tensor) -> Tensor | None:
        if not isinstance(tensor, DTensor):
            return tensor
        full = tensor.full_tensor()
        return known.setdefault(tensor.to_local().data_ptr(), full.cpu()) if keep else None

    return utils.apply_to_sample(whole, state)


def _shard_state(optimizer: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Shard complete moments before they are loaded, and keep the part of this rank."""
    from torch.distributed.tensor import distribute_tensor

    def part(value: Tensor, parameter: Any) -> Tensor:
        if value.shape != parameter.shape:  # the number of steps
            return value
        moved = value.to(parameter.device)
        return distribute_tensor(moved, parameter.device_mesh, parameter.placements, src_data_rank=None)

    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    state = {
        number: {name: part(value, parameters[number]) for name, value in values.items()}
        for number, values in state_dict["state"].items()
    }
    return {**state_dict, "state": state}
