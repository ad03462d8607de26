"""Patches of fairseq's options: their parsing, and messages for mistakes that fairseq does not explain."""

import argparse
import itertools
import logging
import math
import sys
from collections.abc import Callable
from typing import Any

from fairseq import options
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.optim.lr_scheduler.polynomial_decay_schedule import PolynomialDecayLRSchedule
from fairseq.trainer import Trainer
from fairseq_cli import train

from s2sft_fairseq.errors import UserError, as_option, shown
from s2sft_fairseq.inference.search_bounds import number_problems
from s2sft_fairseq.runtime import Function, wrap

logger = logging.getLogger(__name__)

_HELP = ("-h", "--help")
# The minimum and maximum of options for which fairseq accepts every number.
_BOUNDS = {
    **dict.fromkeys(("lr", "clip_norm", "weight_decay", "warmup_updates", "max_update", "max_epoch"), (0.0, math.inf)),
    **dict.fromkeys(("batch_size", "max_tokens"), (1.0, math.inf)),
    "seed": (0.0, 2.0**32 - 1),  # of NumPy
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout", "label_smoothing"), (0.0, 1.0)),
}


def install() -> None:
    """Wrap the parser, the linear schedule, and two functions of the training."""
    wrap(options, "parse_args_and_arch", _parse)
    wrap(PolynomialDecayLRSchedule, "__init__", _make_linear_schedule)
    wrap(train, "get_valid_stats", _get_valid_stats)
    wrap(train, "train", _train_epoch)


def _parse(
    parse: Function, parser: argparse.ArgumentParser, input_args: list[str] | None = None, *args: Any, **kwargs: Any
) -> argparse.Namespace | tuple[argparse.Namespace, list[str]]:
    """Patch ``parse_args_and_arch`` of fairseq/options.py, which every command calls.

    The steps, in this order:

    1. ``--help`` includes the options of the task, the model and the criterion. fairseq prints it before it adds them.
    2. Two mistakes get a message: a missing ``--arch``, for which fairseq's exception has no text, and ``--fp16`` with
       ``--bf16``, for which fairseq's text is about ``--tpu``.
    3. ``--bf16`` does not request a TPU. fairseq sets ``tpu`` with it, and then fails without one.
    4. ``--total-num-update`` is ``--max-update`` by default. fairseq declares this, but its parser
       (``gen_parser_from_dataclass``) drops a default that refers to another option.
    5. Numbers that are out of range are refused, see `_check_numbers`.
    """
    given = sys.argv[1:] if input_args is None else list(input_args)
    if not set(_HELP).isdisjoint(given):
        input_args = [argument for argument in given if argument not in _HELP]
        args, kwargs = (), {"modify_parser": _help_printer()}
    wants_tpu = "--tpu" in given
    try:
        parsed = parse(parser, input_args, *args, **kwargs)
    except RuntimeError as error:
        if error.args:
            raise
        own = [name for name, model in ARCH_MODEL_REGISTRY.items() if model.__module__.startswith("s2sft_fairseq.")]
        raise UserError(f"--arch is needed: {', '.join(sorted(own))}, or one of fairseq's own models") from None
    except ValueError as error:
        if not wants_tpu and "--fp16 and --tpu" in str(error):
            raise UserError("--fp16 and --bf16 exclude each other: give one of them") from None
        raise
    namespace = parsed[0] if isinstance(parsed, tuple) else parsed
    if getattr(namespace, "bf16", False) and not wants_tpu:
        namespace.tpu = False
    if getattr(namespace, "total_num_update", 0) is None:
        namespace.total_num_update = float(namespace.max_update or 0)
    _check_numbers(namespace)
    return parsed


def _check_numbers(namespace: argparse.Namespace) -> None:
    """Refuse numbers that are out of range, infinite or NaN.

    Raises:
        UserError: lists all such options.
    """
    problems = []
    for name, (least, greatest) in _BOUNDS.items():
        given = getattr(namespace, name, None)
        values = given if isinstance(given, list) else [given]
        numbers = [value for value in values if isinstance(value, int | float)]
        wrong = [value for value in numbers if not (least <= value <= greatest and value < math.inf)]
        if wrong:
            between = f"between {least:g} and {greatest:.10g}" if greatest < math.inf else f"a number from {least:g} on"
            problems.append(f"{as_option(name)} must be {between}, but is {', '.join(map(shown, wrong))}")
    if getattr(namespace, "lr_scheduler", None) == "inverse_sqrt" and namespace.warmup_updates == 0:
        problems.append("--warmup-updates must be at least 1 with --lr-scheduler inverse_sqrt, but is 0")
    if hasattr(namespace, "max_update") and getattr(namespace, "num_shards", 1) != 1:  # a training
        problems.append(f"--num-shards is for s2sft generate and must be left out here, but is {namespace.num_shards}")
    if hasattr(namespace, "nbest"):  # a command that searches
        problems += number_problems(namespace)
    if problems:
        raise UserError.of(problems)


def _help_printer() -> Callable[[argparse.ArgumentParser], None]:
    """Return a ``modify_parser`` that prints the help.

    fairseq calls it before it reads ``--task`` and similar options, and again when all of their options are added.
    """
    calls = itertools.count(1)

    def print_help(parser: argparse.ArgumentParser) -> None:
        if next(calls) == 1:
            _forget_default_arch(parser)
        else:
            parser.print_help()
            parser.exit()

    return print_help


def _forget_default_arch(parser: argparse.ArgumentParser) -> None:
    """Without ``--arch``, show no model options; fairseq would fail, or show those of one of its own models."""
    for action in parser._actions:
        if action.dest == "arch":
            action.default = argparse.SUPPRESS


def _make_linear_schedule(make: Function, schedule: PolynomialDecayLRSchedule, cfg: Any, optimizer: Any) -> None:
    """Patch the schedule of fairseq/optim/lr_scheduler/polynomial_decay_schedule.py: explain wrong options.

    fairseq asserts ``total_num_update > 0`` without a text. If the warm-up is longer than the training, its learning
    rate falls to the end value in one step.
    """
    if cfg.total_num_update <= 0:
        raise UserError(
            "--lr-scheduler polynomial_decay needs --max-update, or --total-num-update for another end: the "
            "number of updates over which the learning rate falls"
        )
    if cfg.warmup_updates > cfg.total_num_update:
        raise UserError(
            f"--warmup-updates ({cfg.warmup_updates}) must be at most --total-num-update "
            f"({cfg.total_num_update:g}): the learning rate would fall to its end in one step"
        )
    make(schedule, cfg, optimizer)


def _get_valid_stats(
    get_stats: Function, cfg: Any, trainer: Trainer, stats: dict[str, Any], *others: Any
) -> dict[str, Any]:
    """Patch ``get_valid_stats`` of fairseq_cli/train.py: check ``--best-checkpoint-metric`` first.

    For an unknown metric, fairseq raises a bare `KeyError` after a whole epoch.
    """
    metric = cfg.checkpoint.best_checkpoint_metric
    if metric not in stats:
        raise UserError(f"--best-checkpoint-metric must be one of {', '.join(sorted(stats))}, but is {metric}")
    return get_stats(cfg, trainer, stats, *others)


def _train_epoch(train_epoch: Function, cfg: Any, trainer: Trainer, *others: Any) -> tuple[list[float | None], bool]:
    """Patch ``train`` of fairseq_cli/train.py: do not begin an epoch if ``--max-update`` is already reached.

    fairseq compares the two numbers only after an update, and so makes one more.
    """
    done, wanted = trainer.get_num_updates(), cfg.optimization.max_update
    if not wanted or done < wanted:
        return train_epoch(cfg, trainer, *others)
    logger.warning(f"nothing is left to train: {done:,} updates are done, and --max-update is {wanted:,}")
    return [None], True
