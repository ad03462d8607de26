"""AdamW on PyTorch's own fused kernels, which scale and clip as they update; no decay on biases and layer norms.

Parameters that are kept in 16 bits alone (`--memory-efficient-fp16`, `--memory-efficient-bf16`) have moments and
arithmetic of 32 bits.
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

# fairseq's attribute for groups of parameters, which its fp32 copies of fp16 parameters keep.
GROUP_ATTRIBUTE, NO_DECAY = "param_group", "no_decay"
WIDENED = 1 << 25
"""Elements of the parameters of 16 bits that a GPU has in 32 bits at a time, or those of the largest one."""


class SixteenBitAdamW(torch.optim.AdamW):
    """AdamW whose moments and arithmetic are of 32 bits, whatever its parameters are.

    PyTorch's own keeps the moments in the type of the parameters. In float16 the squares of small gradients vanish, and
    in bfloat16 a second moment of 0.999 of itself and 0.001 of something new is always the same one.
    """

    # What fairseq's MemoryEfficientFP16Optimizer asks for; it patches the loading of the moments otherwise.
    supports_memory_efficient_fp16 = True
    disable_mem_eff_fp16_loading_hack = True

    grad_scale: Tensor | None = None
    """What the gradients of the next step are to be divided by: a float32 scalar on the device of the parameters."""
    found_inf: Tensor | None = None
    """1 if the next step is not to change anything: a float32 scalar there too."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update some parameters at a time, so that only these are there in 32 bits."""
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
        """Load moments as they were saved; PyTorch's own loading gives them the type of the parameters."""
        super().load_state_dict(state_dict)
        numbers = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in self.param_groups)
        for number, parameter in zip(numbers, parameters, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                self.state[parameter][name] = value.to(parameter.device, torch.float32, copy=True)


def _lists(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Cut parameters into lists of at most `WIDENED` elements, or of one parameter; on CPUs each is one of its own."""
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
    """Mark parameters that weight decay leaves alone."""
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

    fairseq multiplies all gradients by one over the number of labels, measures their norm, and multiplies them again to
    clip it. Here both factors are only kept, and the kernel applies their product as it reads the gradients: two passes
    over memory less. Between `multiply_grads` and `step` the gradients are thus still the sums that the backward passes
    left.

    Against the optimiser of the s2s-ft program: epsilon is added after the bias correction of the second moment, not
    before, and the decay is applied before the update, not after.
    """

    # fairseq's AMPOptimizer has PyTorch's GradScaler undo the loss scale before the norm is measured, and then again
    # before the step, because it names two different objects. With this the second time is left to `step`.
    _step_supports_amp_scaling = True
    found_inf: Tensor | None = None
    """Set by GradScaler for a step: 1 if the gradients overflowed, so that nothing may change."""
    _not_finite: Tensor | None = None
    """On GPUs 1 where the norm was infinite or no number: nobody has looked at it when the step comes."""

    def __init__(self, cfg: FusedAdamWConfig, params: Iterable[nn.Parameter]) -> None:
        """Take the parameters of the model that are trained.

        Raises:
            UserError: if fairseq has flattened them, so that decay could not leave any out; if the moments of weights
                that are in 16 bits alone are to be factored.
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
                "--optimizer fused_adamw needs --weight-decay 0 where parameters are flattened: biases and layer norms "
                "cannot be left out of the decay then"
            )
        kinds = {(parameter.device, parameter.dtype) for parameter in (*decayed, *exempt, *factored)}
        self._fused = all(has_fused_kernels(*kind) for kind in kinds)
        self._factor: float | Tensor = 1.0  # that the gradients are still to be multiplied by
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
        """The settings in PyTorch's words."""
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
        """Whether all parameters may be one: without weight decay they are all treated alike."""
        return True

    def multiply_grads(self, c: float | Tensor) -> None:
        """Let the next norm and the next step multiply the gradients by a constant."""
        self._factor = self._factor * c

    def clip_grad_norm(self, max_norm: float, aggregate_norm_fn: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Let the next step clip the gradients.

        Args:
            max_norm: largest L2 norm of all gradients together; 0: no limit.
            aggregate_norm_fn: what makes the norm of all ranks of that of this one, where each has other parameters.

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
        """Whether a step with gradients that are not finite changes nothing on a GPU, without the host being asked."""
        return self._fused and not isinstance(self.optimizer, FactoredAdamW)

    def zero_grad(self) -> None:
        """Drop the gradients, and what they were still to be multiplied by."""
        super().zero_grad()
        self._factor, self._not_finite = 1.0, None

    def load_state_dict(self, state_dict: dict[str, Any], optimizer_overrides: dict[str, Any] | None = None) -> None:
        """Load the moments; they may have been made with other kernels or another epsilon than this class would take.

        Raises:
            UserError: if they are the moments of other parameters, or in other groups.
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
    """Tell whether this PyTorch has fused kernels for parameters of a device and type, by an update of one number."""
    probe = nn.Parameter(torch.zeros((), device=device, dtype=dtype))
    probe.grad = torch.zeros_like(probe)
    try:
        torch.optim.AdamW([probe], fused=True).step()
    except (RuntimeError, NotImplementedError) as error:
        logger.debug(f"AdamW runs unfused: {error}")
        return False
    return True


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """Return the L2 norm of the gradients of all parameters together, a float32 scalar; 0 where there are none."""
    parameters = list(parameters)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return torch.zeros((), device=parameters[0].device if parameters else None)
    norms = torch._foreach_norm(gradients, 2, dtype=torch.float32)
    # Of sharded parameters: the norms of the parts that this rank has.
    own = [norm.to_local() if hasattr(norm, "to_local") else norm for norm in norms]
    return torch.linalg.vector_norm(torch.stack(own))


def _divisor(factor: float | Tensor, device: torch.device) -> Tensor:
    """Return what the kernels divide by to multiply, a float32 scalar, without waiting for the device."""
    if not isinstance(factor, Tensor):
        factor = torch.full((), factor, dtype=torch.float32, device=device)
    return factor.to(device, torch.float32).reciprocal()


def _counted(sizes: list[int]) -> str:
    return f"{' + '.join(map(str, sizes))} parameters"
