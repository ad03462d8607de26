"""`--help` beside `--task`, `--arch` or `--criterion`: fairseq prints its help before it adds the options of these."""

import argparse
import functools
import itertools
import sys
from collections.abc import Callable

from fairseq import options

_HELP = ("-h", "--help")


def _with_full_help(parse: Callable) -> Callable:
    @functools.wraps(parse)
    def parse_args_and_arch(
        parser: argparse.ArgumentParser, input_args: list[str] | None = None, *args: object, **kwargs: object
    ) -> argparse.Namespace | tuple[argparse.Namespace, list[str]]:
        given = sys.argv[1:] if input_args is None else list(input_args)
        if not set(_HELP).intersection(given):
            return parse(parser, input_args, *args, **kwargs)

        # fairseq calls this hook before it reads --task and the like, and again when their options are all added.
        calls = itertools.count(1)

        def print_help(parser: argparse.ArgumentParser) -> None:
            if next(calls) == 1:
                _forget_default_arch(parser)
            else:
                parser.print_help()
                parser.exit()

        without_help = [argument for argument in given if argument not in _HELP]
        return parse(parser, without_help, modify_parser=print_help)

    return parse_args_and_arch


def _forget_default_arch(parser: argparse.ArgumentParser) -> None:
    """Without an `--arch`, show no model's options; fairseq would fail, or show those of some model of its own."""
    for action in parser._actions:
        if action.dest == "arch":
            action.default = argparse.SUPPRESS


def apply() -> None:
    """Print the help after the options of the task, the architecture, the criterion and so on are added."""
    options.parse_args_and_arch = _with_full_help(options.parse_args_and_arch)
