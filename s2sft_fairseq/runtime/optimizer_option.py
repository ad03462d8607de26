"""Training without `--optimizer`: fairseq fails with a traceback that ends in "optimizer is required!"."""

import functools
from collections.abc import Callable

from fairseq import optim

from s2sft_fairseq.errors import UserError


def _require_optimizer(build: Callable) -> Callable:
    @functools.wraps(build)
    def build_optimizer(cfg: object, params: object, *args: object, **kwargs: object) -> object:
        if cfg is None:
            raise UserError(f"--optimizer is needed: {', '.join(sorted(optim.OPTIMIZER_REGISTRY))}")
        return build(cfg, params, *args, **kwargs)

    return build_optimizer


def apply() -> None:
    """Say that `--optimizer` is missing, and what it can be."""
    optim.build_optimizer = _require_optimizer(optim.build_optimizer)
