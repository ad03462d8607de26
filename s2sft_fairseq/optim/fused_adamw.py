"""AdamW with PyTorch's fused kernels, which scale and clip the gradients while they update the parameters.

Weight decay leaves out biases and layer norms. Parameters without a copy in 32 bits (`--memory-efficient-fp16`,
`--memory-efficient-bf16`) have moments and arithmetic in 32 bits.
"""

import ast
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II
from torch import Tensor, nn
from torch.optim.adamw import adamw

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.optim.factored_adamw import LARGE, FactoredAdamW

logger = logging.getLogger(__name__)

# fairseq's attribute for groups of parameters; its fp32 copies of fp16 parameters have it, too.
GROUP_ATTRIBUTE, NO_DECAY = "param_group", "no_decay"
WIDENED = 1 << 25
"""Elements of 16-bit parameters that are copied to 32 bits at a time on a GPU; a larger parameter is copied alone."""


class SixteenBitAdamW(torch.optim.AdamW):
    """AdamW whose moments and arithmetic are in 32 bits for parameters of any type.

    PyTorch's AdamW keeps the moments in the type of the parameters. In float16 the squares of small gradients underflow
    to 0. In bfloat16 a second moment never changes: 0.001 of a new square is lost in rounding.
    """

    # fairseq's MemoryEfficientFP16Optimizer reads both; without them it changes how the moments are loaded.
    supports_memory_efficient_fp16 = True
    disable_mem_eff_fp16_loading_hack = True

    grad_scale: Tensor | None = None
    """The divisor of the gradients in the next step, a float32 scalar on the parameters' device; None: 1."""
    found_inf: Tensor | None = None
    """1 if the next step must not change anything, a float32 scalar on the parameters' device."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update a few parameters at a time, so that only these are copied to 32 bits."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameters in _lists([each for each in group["params"] if each.grad is not None]):
                self._update(parameters, group)
        return loss

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = {
                    "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter, dtype=torch.float32),
                    "exp_avg_sq": torch.zeros_like(parameter, dtype=torch.float32),
                }
        states = [self.state[parameter] for parameter in parameters]
        wide = _widened(parameters)
        adamw(
            wide,
            _widened([parameter.grad for parameter in parameters if parameter.grad is not None]),
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=group["fused"],
            foreach=group["foreach"],
            grad_scale=self.grad_scale,
            found_inf=self.found_inf,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        torch._foreach_copy_(parameters, wide)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load moments in 32 bits; PyTorch's own method converts them to the parameters' type."""
        super().load_state_dict(state_dict)
        numbers = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in self.param_groups)
        for number, parameter in zip(numbers, parameters, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                self.state[parameter][name] = value.to(parameter.device, torch.float32, copy=True)


def _lists(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield lists of parameters with at most `WIDENED` elements, or with one parameter; on CPUs always with one."""
    found: list[Tensor] = []
    for parameter in parameters:
        elements = sum(each.numel() for each in found) + parameter.numel()
        if found and (elements > WIDENED or parameter.device.type == "cpu"):
            yield found
            found = []
        found.append(parameter)
    if found:
        yield found


def _widened(tensors: list[Tensor]) -> list[Tensor]:
    """Return copies in float32."""
    wide = [torch.empty_like(tensor, dtype=torch.float32) for tensor in tensors]
    torch._foreach_copy_(wide, tensors)
    return wide


def exempt_from_decay(parameters: Iterable[nn.Parameter]) -> None:
    """Mark parameters to leave them out of weight decay."""
    for parameter in parameters:
        setattr(parameter, GROUP_ATTRIBUTE, NO_DECAY)


@dataclass
class FusedAdamWConfig(FairseqDataclass):
    """Options of AdamW; the defaults are those of the s2s-ft paper (appendix A, Table 7)."""

    adam_betas: Any = field(default=(0.9, 0.999), metadata={"help": "decay rates of the two moments"})
    adam_eps: float = field(default=1e-6, metadata={"help": "added to the root of the second moment"})
    weight_decay: float = field(default=0.01, metadata={"help": "decoupled decay; none on biases and layer norms"})
    factored_moments: bool = field(
        default=False,
        metadata={
            "help": f"keep the moments of matrices of {LARGE:,} and more elements, that is of token embeddings, in 2 "
            "bytes an element in place of 8: the second as means of rows and columns, as in Adafactor, the first in "
            "bfloat16"
        },
    )
    lr: Any = II("optimization.lr")


@register_optimizer("fused_adamw", dataclass=FusedAdamWConfig)
class FusedAdamW(FairseqOptimizer):
    """`torch.optim.AdamW` (Loshchilov and Hutter, 2019) in its fused form.

    fairseq multiplies all gradients by one over the number of labels, computes their norm, and multiplies them again to
    clip it. This class only stores both factors, and the kernel applies their product when it reads the gradients: two
    passes over memory less. So between `multiply_grads` and `step` the gradients still are the sums of the backward
    passes.

    Unlike the optimizer of the s2s-ft program, this one adds epsilon after the bias correction of the second moment,
    not before, and applies the decay before the update, not after.
    """

    # fairseq's AMPOptimizer makes PyTorch's GradScaler unscale the gradients before the norm is computed, and again
    # before the step, because it passes two different objects. With this flag, `step` does the second unscaling.
    _step_supports_amp_scaling = True
    found_inf: Tensor | None = None
    """Set by GradScaler for a step: 1 if the gradients overflowed, so that nothing may change."""
    _not_finite: Tensor | None = None
    """On GPUs: 1 if the last norm was infinite or NaN. Python does not read it before the step."""

    def __init__(self, cfg: FusedAdamWConfig, params: Iterable[nn.Parameter]) -> None:
        """Group the trained parameters of the model.

        Raises:
            UserError: fairseq flattened the parameters, so that decay cannot leave any out; or moments must be factored
                although the weights are in 16 bits only.
        """
        super().__init__(cfg)
        decayed: list[nn.Parameter] = []
        exempt: list[nn.Parameter] = []
        factored: list[nn.Parameter] = []
        for parameter in params:
            if getattr(parameter, GROUP_ATTRIBUTE, None) == NO_DECAY:
                exempt.append(parameter)
            else:
                is_large = parameter.ndim == 2 and parameter.numel() >= LARGE
                (factored if cfg.factored_moments and is_large else decayed).append(parameter)
        if cfg.weight_decay and not exempt and len(decayed) == 1:
            raise UserError(
                "--optimizer fused_adamw needs --weight-decay 0 if parameters are flattened: biases and layer norms "
                "cannot be left out of the decay then"
            )
        kinds = {(parameter.device, parameter.dtype) for parameter in (*decayed, *exempt, *factored)}
        self._fused = all(has_fused_kernels(*kind) for kind in kinds)
        self._factor: float | Tensor = 1.0  # the gradients are multiplied by this in the next step
        sixteen_bits = any(dtype in (torch.float16, torch.bfloat16) for _, dtype in kinds)
        if factored and sixteen_bits:
            raise UserError(
                "--factored-moments needs weights of 32 bits: leave out --memory-efficient-bf16 and "
                "--memory-efficient-fp16"
            )
        groups: list[dict[str, Any]] = [{"params": decayed}, {"params": exempt, "weight_decay": 0.0}]
        kind = SixteenBitAdamW if sixteen_bits else torch.optim.AdamW
        if factored:
            kind = FactoredAdamW
            groups = [{**group, "factored": False} for group in groups] + [{"params": factored, "factored": True}]
        self._optimizer = kind([group for group in groups if group["params"]], **self.optimizer_config)

    @property
    def optimizer_config(self) -> dict[str, Any]:
        """The arguments of PyTorch's optimizer."""
        betas = self.cfg.adam_betas
        return {
            "lr": self.cfg.lr[0] if isinstance(self.cfg.lr, Sequence) else self.cfg.lr,
            "betas": tuple(ast.literal_eval(betas) if isinstance(betas, str) else betas),
            "eps": self.cfg.adam_eps,
            "weight_decay": self.cfg.weight_decay,
            **self._kernels,
        }

    @property
    def _kernels(self) -> dict[str, bool]:
        return {"fused": self._fused, "foreach": not self._fused}

    @property
    def supports_flat_params(self) -> bool:
        """Whether fairseq may flatten all parameters into one: yes, without weight decay all are treated alike."""
        return True

    def multiply_grads(self, c: float | Tensor) -> None:
        """Store a factor that the next norm and the next step apply to the gradients."""
        self._factor = self._factor * c

    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Compute the norm of the gradients, and store a factor with which the next step clips them.

        Args:
            max_norm: largest L2 norm of all gradients together; 0: no limit.
            aggregate_norm_fn: computes the norm over all ranks from that of this rank, if parameters are sharded.

        Returns:
            Their norm before clipping, a float32 scalar on their device.
        """
        norm = gradient_norm(self.params) * self._factor
        if aggregate_norm_fn is not None:
            norm = aggregate_norm_fn(norm)
        if norm.device.type != "cpu":
            self._not_finite = norm.isfinite().logical_not().float()
        if max_norm > 0:
            # 1e-6 as in fairseq and PyTorch
            self.multiply_grads((max_norm / (norm + 1e-6)).clamp(max=1))
        return norm

    def step(self, closure: Callable[..., Any] | None = None, scale: float | Tensor = 1.0, groups: Any = None) -> None:
        """Update the parameters with their gradients divided by ``scale``; ``groups`` has no effect."""
        factor, self._factor = self._factor / scale, 1.0
        device = next(iter(self.params)).device
        if self._fused:
            self.optimizer.grad_scale = _divisor(factor, device)
            self.optimizer.found_inf = self.found_inf
            if self.found_inf is None and self.leaves_out_overflows:
                self.optimizer.found_inf = self._not_finite
            self.optimizer.step(closure)
            self.optimizer.grad_scale = self.optimizer.found_inf = None
        elif self.found_inf is None or not bool(self.found_inf):
            super().multiply_grads(factor)
            self.optimizer.step(closure)
        self._not_finite = None

    @property
    def leaves_out_overflows(self) -> bool:
        """Whether a GPU skips the update itself if gradients are not finite, without a synchronization."""
        return self._fused and not isinstance(self.optimizer, FactoredAdamW)

    def zero_grad(self) -> None:
        """Drop the gradients, and the stored factor."""
        super().zero_grad()
        self._factor, self._not_finite = 1.0, None

    def load_state_dict(self, state_dict: dict[str, Any], optimizer_overrides: dict[str, Any] | None = None) -> None:
        """Load the moments, which may come from other kernels; the kernels of this run are kept.

        Raises:
            UserError: the groups of parameters in the checkpoint are others.
        """
        found = [len(group["params"]) for group in state_dict["param_groups"]]
        needed = [len(group["params"]) for group in self.param_groups]
        if found != needed:
            raise UserError(
                f"the checkpoint's optimizer trains {_counted(found)}, but this run {_counted(needed)}: give the "
                "options that it was trained with (--freeze-embeddings, --freeze-layers, --lora-rank, --lora-targets, "
                "--weight-decay, --factored-moments), or --reset-optimizer"
            )
        groups = [{**group, **self._kernels} for group in state_dict["param_groups"]]
        super().load_state_dict({**state_dict, "param_groups": groups}, optimizer_overrides)


@lru_cache
def has_fused_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    """Return whether PyTorch has fused kernels for a device and type; test it with an update of one number."""
    probe = nn.Parameter(torch.zeros((), device=device, dtype=dtype))
    probe.grad = torch.zeros_like(probe)
    try:
        torch.optim.AdamW([probe], fused=True).step()
    except (RuntimeError, NotImplementedError) as error:
        logger.debug(f"AdamW runs unfused: {error}")
        return False
    return True


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Return the L2 norm of the gradients of all parameters together, a float32 scalar; 0 without gradients."""
    parameters = list(parameters)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros((), device=parameters[0].device if parameters else None)
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)
    # For sharded parameters, take the norms of this rank's shards.
    own = [norm.to_local() if hasattr(norm, "to_local") else norm for norm in norms]
    return torch.linalg.vector_norm(torch.stack(own))


def _divisor(factor: float | Tensor, device: torch.device) -> Tensor:
    """Return one over `factor`, by which the kernels divide, as a float32 scalar, without synchronization."""
    if not isinstance(factor, Tensor):
        factor = torch.full((), factor, dtype=torch.float32, device=device)
    return factor.to(device, torch.float32).reciprocal()


def _counted(sizes: list[int]) -> str:
    return f"{' + '.join(map(str, sizes))} parameters"
