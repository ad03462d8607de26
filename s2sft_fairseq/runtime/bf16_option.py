"""`--bf16` on the command line: fairseq takes it for a request to train on a TPU, and then fails without one."""

import argparse
import functools
import sys
from collections.abc import Callable

from fairseq import options

from s2sft_fairseq.errors import UserError


def _without_tpu(parse: Callable) -> Callable:
    @functools.wraps(parse)
    def parse_args_and_arch(
        parser: argparse.ArgumentParser, input_args: list[str] | None = None, *args: object, **kwargs: object
    ) -> argparse.Namespace | tuple[argparse.Namespace, list[str]]:
        tpu = "--tpu" in (sys.argv if input_args is None else input_args)
        try:
            parsed = parse(parser, input_args, *args, **kwargs)
        except ValueError as error:
            if not tpu and "--fp16 and --tpu" in str(error):
                raise UserError("--fp16 and --bf16 exclude each other: give one of them") from None
            raise
        namespace = parsed[0] if isinstance(parsed, tuple) else parsed
        if getattr(namespace, "bf16", False) and not tpu:
            namespace.tpu = False
        return parsed

    return parse_args_and_arch


def apply() -> None:
    """Let `--tpu` alone mean a TPU, in every fairseq command."""
    options.parse_args_and_arch = _without_tpu(options.parse_args_and_arch)
