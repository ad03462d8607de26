"""Patches for models that one GPU does not hold: ``--ddp-backend fully_sharded`` is PyTorch's FSDP2.

fairseq knows that name, and means fairscale by it, which is no longer developed. Here every rank keeps a part of each
parameter, of its gradient and of its moments, in 32 bits. A layer is put together when it is computed: in bfloat16 with
``--bf16``, gradients are then summed in 32 bits. Checkpoints are those of one process.
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

logger = logging.getLogger(__name__)

_BACKEND = "fully_sharded"


def install() -> None:
    """Refuse what needs fairscale, and train sharded models by `ShardedTrainer`."""
    wrap(distributed_utils, "call_main", _run)
    # fairscale's wrapper, which fairseq_cli/train.py puts around the model.
    train.fsdp_enable_wrap = lambda cfg: contextlib.nullcontext()
    train.Trainer = _make_trainer


def _run(call: Function, cfg: DictConfig, main: Function, **options: Any) -> None:
    """Patch ``call_main`` of fairseq/distributed/utils.py, which runs a command: `check` its options first."""
    check(cfg)
    call(cfg, main, **options)


def check(cfg: DictConfig) -> None:
    """Make sure that the options need no fairscale, and go with sharded parameters where those are asked for.

    Raises:
        UserError: naming every option that does not.
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
    """Stand in for `Trainer` in fairseq_cli/train.py; one process has nothing to share."""
    training = cfg.distributed_training
    if training.ddp_backend == _BACKEND and training.distributed_world_size == 1:
        logger.info(f"--ddp-backend {_BACKEND}: nothing is sharded, for there is one process")
        training.ddp_backend = "pytorch_ddp"
    return (ShardedTrainer if training.ddp_backend == _BACKEND else Trainer)(cfg, *args)


class ShardedTrainer(Trainer):
    """fairseq's trainer, of a model whose parameters are shared out among the ranks.

    The model is loaded whole, on the CPU, and sharded when the optimizer is built, which fairseq does next.
    """

    is_fsdp = False  # fairscale's

    def __init__(self, cfg: DictConfig, *args: Any) -> None:
        self._dtype = torch.bfloat16 if cfg.common.bf16 else None
        self._whole_state: dict[str, Any] | None = None
        cfg.common.bf16 = False  # fairseq would train a model in bfloat16, beside a copy in 32 bits
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
        """Clip by the norm of the gradients of all ranks together."""

        def of_all_ranks(norm: Tensor) -> Tensor:
            squared = norm.square()
            torch.distributed.all_reduce(squared, group=self.data_parallel_process_group)
            return squared.sqrt()

        return self.optimizer.clip_grad_norm(clip_norm, of_all_ranks)

    def consolidate_optimizer(self) -> None:
        """Gather the whole state on the first rank: what every rank calls before a checkpoint is saved.

        Behind an error, which may be that of one rank alone, the others would not answer.
        """
        super().consolidate_optimizer()
        self._whole_state = None if sys.exc_info()[0] else gather(super().state_dict(), self.is_data_parallel_master)

    def state_dict(self) -> dict[str, Any] | None:
        """Return what was gathered."""
        state, self._whole_state = self._whole_state, None
        return state

    def save_checkpoint(self, filename: str, extra_state: dict[str, Any]) -> str | None:
        """Save what was gathered, if anything was."""
        return super().save_checkpoint(filename, extra_state) if self._whole_state else None


def shard(model: nn.Module, device: torch.device, dtype: torch.dtype | None) -> None:
    """Share the parameters of a model out among the ranks, in place: each of its layers for itself, then the others.

    Args:
        model: equal on all ranks, on the CPU.
        device: where the parts go, and where the model is computed.
        dtype: to compute in; None: that of the parameters.
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
    logger.info(f"--ddp-backend {_BACKEND}: {len(layers)} layers, and what is around them, on {mesh.size()} ranks")


def gather(state: dict[str, Any], keep: bool) -> dict[str, Any]:
    """Put sharded tensors together, on the CPU; every rank must call this.

    Args:
        state: whose containers hold the tensors; one that is there under two names stays one.
        keep: whether this rank wants the result; None stands for its tensors otherwise.
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
    """Take this rank's part of moments that are whole, before they are loaded."""
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
