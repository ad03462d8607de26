"""Training without `--arch`: fairseq raises an exception without any text."""

import argparse
import functools
from collections.abc import Callable

from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY

from s2sft_fairseq.errors import UserError


def _require_arch(parse: Callable) -> Callable:
    @functools.wraps(parse)
    def parse_args_and_arch(parser: argparse.ArgumentParser, *args: object, **kwargs: object) -> object:
        try:
            return parse(parser, *args, **kwargs)
        except RuntimeError as error:
            if error.args:
                raise
            own = [name for name, model in ARCH_MODEL_REGISTRY.items() if model.__module__.startswith("s2sft_fairseq.")]
            raise UserError(f"--arch is needed: {', '.join(sorted(own))}, or one of fairseq's own models") from None

    return parse_args_and_arch


def apply() -> None:
    """Say that `--arch` is missing, and what it can be."""
    options.parse_args_and_arch = _require_arch(options.parse_args_and_arch)
