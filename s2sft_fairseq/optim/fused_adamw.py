"""AdamW on PyTorch's own fused kernels, with no decay on biases and layer norms."""

import ast
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from omegaconf import II
from torch import nn

from s2sft_fairseq.errors import UserError

# fairseq's attribute for groups of parameters, which its fp32 copies of fp16 parameters keep.
GROUP_ATTRIBUTE, NO_DECAY = "param_group", "no_decay"


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
    lr: Any = II("optimization.lr")


@register_optimizer("fused_adamw", dataclass=FusedAdamWConfig)
class FusedAdamW(FairseqOptimizer):
    """`torch.optim.AdamW` (Loshchilov and Hutter, 2019) in its fused form.

    Against the optimiser of the s2s-ft program: epsilon is added after the bias correction of the second moment, not
    before, and the decay is applied before the update, not after.
    """

    def __init__(self, cfg: FusedAdamWConfig, params: Iterable[nn.Parameter]) -> None:
        """Take the parameters of the model.

        Raises:
            UserError: if fairseq has flattened them, so that decay could not leave any out.
        """
        super().__init__(cfg)
        decayed, exempt = [], []
        for parameter in params:
            (exempt if getattr(parameter, GROUP_ATTRIBUTE, None) == NO_DECAY else decayed).append(parameter)
        if cfg.weight_decay and not exempt and len(decayed) == 1:
            raise UserError(
                "--optimizer fused_adamw needs --fp16-no-flatten-grads with --fp16, or --weight-decay 0: "
                "flattened parameters cannot leave biases and layer norms out of the decay"
            )
        groups = [{"params": decayed}, {"params": exempt, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(
            [group for group in groups if group["params"]], **self.optimizer_config, fused=True
        )

    @property
    def optimizer_config(self) -> dict[str, Any]:
        """The settings in PyTorch's words."""
        betas = self.cfg.adam_betas
        return {
            "lr": self.cfg.lr[0] if isinstance(self.cfg.lr, Collection) else self.cfg.lr,
            "betas": tuple(ast.literal_eval(betas) if isinstance(betas, str) else betas),
            "eps": self.cfg.adam_eps,
            "weight_decay": self.cfg.weight_decay,
        }
