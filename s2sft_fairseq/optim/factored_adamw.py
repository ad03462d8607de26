"""AdamW that needs less memory for large matrices, such as the embedding of a vocabulary of 250,000 symbols."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LARGE = 1 << 23
"""Number of elements from which the moments of a matrix are factored. The token embedding of a BERT of width 384 has
12 million elements, the largest matrix of a layer of BERT-large 4 million."""
_ROWS = 4096  # updated at a time, to limit the memory of intermediate results


class FactoredAdamW(torch.optim.AdamW):
    """AdamW whose moments take 2 bytes per element instead of 8 in parameter groups with ``factored``.

    The second moment of a matrix is stored as the means of its rows and of its columns, from which each element is
    estimated (Adafactor, Shazeer and Stern, 2018, algorithm 2, without its clipping). The first moment is stored in
    bfloat16. R: rows, C: columns.
    """

    grad_scale: Tensor | None = None
    """The divisor of the gradients in the next step, a float32 scalar; None: 1."""
    found_inf: Tensor | None = None
    """1 if the next step must not change anything, a float32 scalar."""

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters."""
        groups = self.param_groups
        try:
            self.param_groups = [group for group in groups if not group["factored"]]
            loss = super().step(closure)
        finally:
            self.param_groups = groups
        if self.found_inf is None or not bool(self.found_inf):
            for group in groups:
                for parameter in group["params"] if group["factored"] else ():
                    if parameter.grad is not None:
                        self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        """Update a matrix (R, C) with its gradient (R, C)."""
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)  # on the CPU, because Python reads it
            state["exp_avg"] = torch.zeros_like(parameter, dtype=torch.bfloat16)
            state["row_mean_sq"] = parameter.new_zeros(len(parameter), 1)
            state["column_mean_sq"] = parameter.new_zeros(1, parameter.shape[1])
        state["step"] += 1
        beta1, beta2 = group["betas"]
        factor = 1 if self.grad_scale is None else self.grad_scale.reciprocal()
        rows, columns = state["row_mean_sq"], state["column_mean_sq"]
        rows.mul_(beta2)
        columns.mul_(beta2)
        for row, part in zip(rows.split(_ROWS), gradient.split(_ROWS), strict=True):
            squares = (part * factor).square_()
            row.add_(squares.mean(1, keepdim=True), alpha=1 - beta2)
            columns.add_(squares.sum(0, keepdim=True), alpha=(1 - beta2) / len(parameter))
        step = state["step"].item()
        correction1, correction2 = 1 - beta1**step, 1 - beta2**step
        # The estimate of an element is the mean of its row times that of its column, divided by the mean of all.
        column_roots = (columns / columns.mean().clamp(min=torch.finfo(torch.float32).tiny) / correction2).sqrt_()
        parts = (each.split(_ROWS) for each in (parameter, gradient, state["exp_avg"], rows))
        for values, part, moment, row in zip(*parts, strict=True):
            first = moment.float().lerp_(part * factor, 1 - beta1)
            moment.copy_(first)
            divisor = (row.sqrt() * column_roots).add_(group["eps"])
            values.mul_(1 - group["lr"] * group["weight_decay"])
            values.addcdiv_(first, divisor, value=-group["lr"] / correction1)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load moments with their saved types; PyTorch's own method converts them to those of the parameters."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            if "row_mean_sq" in state:
                state["exp_avg"] = state["exp_avg"].bfloat16()
                state["step"] = state["step"].cpu()
