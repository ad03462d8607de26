"""The linear schedule of `--lr-scheduler polynomial_decay` ends with `--max-update` where nothing else is asked for.

fairseq's command line loses a default that refers to another option, and asks for the number instead.
"""

import argparse
import functools
from collections.abc import Callable
from typing import Any

from fairseq import options
from fairseq.optim.lr_scheduler.polynomial_decay_schedule import PolynomialDecayLRSchedule

from s2sft_fairseq.errors import UserError


def _until_the_last_update(parse: Callable) -> Callable:
    @functools.wraps(parse)
    def parse_args_and_arch(
        *args: object, **kwargs: object
    ) -> argparse.Namespace | tuple[argparse.Namespace, list[str]]:
        parsed = parse(*args, **kwargs)
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        if getattr(namespace, "total_num_update", 0) is None:
            namespace.total_num_update = float(namespace.max_update or 0)
        return parsed

    return parse_args_and_arch


def _explain_impossible_numbers(make: Callable) -> Callable:
    @functools.wraps(make)
    def __init__(self: PolynomialDecayLRSchedule, cfg: Any, optimizer: Any) -> None:
        if cfg.total_num_update <= 0:
            raise UserError(
                "--lr-scheduler polynomial_decay needs --max-update, or --total-num-update if it is to end elsewhere: "
                "the number of updates over which the learning rate falls"
            )
        if cfg.warmup_updates > cfg.total_num_update:
            raise UserError(
                f"--warmup-updates ({cfg.warmup_updates}) must be at most --total-num-update "
                f"({cfg.total_num_update:g}): the learning rate would fall to its end in one step"
            )
        make(self, cfg, optimizer)

    return __init__


def apply() -> None:
    """Let `--total-num-update` be `--max-update` by default, and say what is wrong with the two numbers."""
    options.parse_args_and_arch = _until_the_last_update(options.parse_args_and_arch)
    PolynomialDecayLRSchedule.__init__ = _explain_impossible_numbers(PolynomialDecayLRSchedule.__init__)
