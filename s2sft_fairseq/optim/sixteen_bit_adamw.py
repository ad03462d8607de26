"""AdamW on parameters that are kept in 16 bits alone, for `--memory-efficient-fp16` and `--memory-efficient-bf16`."""

from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw


class SixteenBitAdamW(torch.optim.AdamW):
    """AdamW whose moments and arithmetic are of 32 bits, whatever its parameters are.

    PyTorch's own keeps the moments in the type of the parameters. In float16 the squares of small gradients vanish, and
    in bfloat16 a second moment of 0.999 of itself and 0.001 of something new is always the same one.
    """

    # What fairseq's MemoryEfficientFP16Optimizer asks for; it mends the loading of the moments by itself otherwise.
    supports_memory_efficient_fp16 = True
    disable_mem_eff_fp16_loading_hack = True

    grad_scale: Tensor | None = None
    """What the gradients of the next step are to be divided by: a float32 scalar on the device of the parameters."""
    found_inf: Tensor | None = None
    """1 if the next step is not to change anything: a float32 scalar there too."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        """Update the parameters one after the other, so that only one at a time is there in 32 bits."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter, dtype=torch.float32)
            state["exp_avg_sq"] = torch.zeros_like(parameter, dtype=torch.float32)
        wide = parameter.float()
        adamw(
            [wide],
            [parameter.grad.float()],
            [state["exp_avg"]],
            [state["exp_avg_sq"]],
            [],
            [state["step"]],
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
        parameter.copy_(wide)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load moments as they were saved; PyTorch's own loading gives them the type of the parameters."""
        super().load_state_dict(state_dict)
        numbers = chain.from_iterable(group["params"] for group in state_dict["param_groups"])
        parameters = chain.from_iterable(group["params"] for group in self.param_groups)
        for number, parameter in zip(numbers, parameters, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                self.state[parameter][name] = value.to(parameter.device, torch.float32, copy=True)
