"""Patches of fairseq's options: their parsing, and messages for mistakes that fairseq does not explain."""

import argparse
import ast
import contextlib
import itertools
import logging
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fairseq import options
from fairseq.distributed import utils as distributed_utils
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY
from fairseq.trainer import Trainer
from fairseq_cli import train
from omegaconf import DictConfig, OmegaConf

from s2sft_fairseq.errors import UserError, as_option, shown
from s2sft_fairseq.runtime import Function, wrap
from s2sft_fairseq.runtime.parts import check_parts
from s2sft_fairseq.runtime.shards import shard_problems
from s2sft_fairseq.search_bounds import SEARCH, number_problems

logger = logging.getLogger(__name__)

_HELP = ("-h", "--help")
_WITH_WARMUP = ("fixed", "polynomial_decay", "inverse_sqrt", "cosine", "tri_stage")
_INF = math.inf
_LARGEST = 1e38
"""Larger numbers are infinite in 32 bits."""
# The minimum and maximum of options for which fairseq accepts every number. Those of searches are in `search_bounds`,
# and others where this package declares them. No option may be NaN or infinite.
_BOUNDS = {
    **dict.fromkeys(("lr", "clip_norm", "weight_decay", "warmup_updates", "max_update", "max_epoch"), (0.0, _INF)),
    **dict.fromkeys(("total_num_update", "end_learning_rate", "power", "min_lr", "max_lr", "lr_shrink"), (0.0, _INF)),
    **dict.fromkeys(("warmup_steps", "hold_steps", "decay_steps", "stop_time_hours", "num_workers"), (0.0, _INF)),
    **dict.fromkeys(("update_freq", "max_tokens", "max_tokens_valid", "batch_size", "batch_size_valid"), (1.0, _INF)),
    **dict.fromkeys(("log_interval", "save_interval", "validate_interval", "t_mult"), (1.0, _INF)),
    **dict.fromkeys(("required_batch_size_multiple", "required_seq_len_multiple"), (1.0, _INF)),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout", "label_smoothing"), (0.0, 1.0)),
    **dict.fromkeys(("ema_decay", "init_lr_scale"), (0.0, 1.0)),
    "final_lr_scale": (1e-12, 1.0),  # its logarithm is needed
    "adam_eps": (0.0, 1.0),
    "adam_betas": (0.0, 1.0),
    "seed": (0.0, 2.0**32 - 1),  # of NumPy
}
_PAIR = ((tuple, list), "two numbers, such as '(0.9, 0.999)'")
_EVALUATED: Mapping[str, tuple[Any, str]] = {
    **dict.fromkeys(("adam_betas", "adamax_betas", "adafactor_eps"), _PAIR),
    "optimizer_overrides": (dict, "a dict of Python, such as '{\"lr\": 0.1}'"),
    "model_overrides": (dict, "a dict of Python, such as '{\"dropout\": 0.1}'"),
    "update2lr": (dict, "a dict of Python, such as '{1: 0.1, 100: 0.01}'"),
    "epoch2lr": (dict, "a dict of Python, such as '{1: 0.1, 5: 0.01}'"),
}
"""For options whose text fairseq evaluates, what it must be."""


def install() -> None:
    """Wrap the parser, the start of a command, an update, and two functions of the training."""
    wrap(options, "parse_args_and_arch", _parse)
    wrap(distributed_utils, "call_main", _run)
    wrap(Trainer, "train_step", _train_step)
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
    5. A model that does not read the batches of the task is refused, see `parts`, before its options fail.
    6. Numbers that are out of range are refused. `_run` checks those that the parser leaves as text, and schedules.
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
    # Commands that read a model have a default, which they do not use.
    chooses_model = any(word.partition("=")[0] in ("--arch", "-a") for word in given)
    if chooses_model and namespace.task in TASK_REGISTRY:
        check_parts(TASK_REGISTRY[namespace.task], arch=namespace.arch)
    if problems := _option_problems(namespace):
        raise UserError.of(problems)
    return parsed


def _option_problems(options: argparse.Namespace) -> list[str]:
    """Return what is wrong with the options of a command, before anything is read."""
    problems = [*_number_problems(vars(options)), *_text_problems(vars(options))]
    is_training = hasattr(options, "max_update")
    if is_training:
        problems += shard_problems(options)
    if hasattr(options, "nbest"):  # a command that searches
        problems += number_problems(options)
    return problems


def _run(call: Function, cfg: Any, main: Function, **others: Any) -> None:
    """Patch ``call_main`` of fairseq/distributed/utils.py, which runs a command: check numbers, also Hydra's.

    A training without the size of a batch is refused by name; fairseq has an assertion.
    """
    values: Any = OmegaConf.to_container(cfg, resolve=True, enum_to_str=True) if isinstance(cfg, DictConfig) else {}
    sections = {name: section for name, section in values.items() if isinstance(section, dict)}
    numbers = {name: value for section in sections.values() for name, value in section.items()}
    kinds = {name: section.get("_name") for name, section in sections.items()}
    problems = [*_number_problems(numbers), *_text_problems(numbers)]
    if problems := problems or list(_schedule_problems({**numbers, **kinds})):
        raise UserError.of(problems)
    trains = getattr(cfg, "optimizer", None) is not None  # other commands have none
    for warning in _schedule_warnings({**numbers, **kinds}) if trains else ():
        logger.warning(warning)
    if trains and cfg.dataset.max_tokens is None and cfg.dataset.batch_size is None:
        raise UserError(
            "--max-tokens or --batch-size is needed: the most positions or examples of a batch (s2sft train has 4096 "
            "positions by default)"
        )
    call(cfg, main, **others)


def _number_problems(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each option, by name, whose number is out of range, infinite or NaN."""
    for name, value in values.items():
        if name in SEARCH:
            continue
        least, greatest = _BOUNDS.get(name, (-_INF, _INF))
        if name in _BOUNDS and isinstance(value, str):  # the parser leaves some as text
            with contextlib.suppress(ValueError):
                value = float(value)
        wrong = [number for number in _numbers(value) if not (least <= number <= greatest and abs(number) <= _LARGEST)]
        if any(_LARGEST < abs(number) < _INF for number in wrong):
            greatest = min(greatest, _LARGEST)
        if wrong:
            yield f"{as_option(name)} must be {_range(least, greatest)}, but is {', '.join(map(shown, wrong))}"


def _text_problems(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each option whose text fairseq evaluates as Python, and that is no such pair or dict."""
    for name, (kind, needed) in _EVALUATED.items():
        value = values.get(name)
        if not isinstance(value, str):
            continue
        try:
            is_one = isinstance(found := ast.literal_eval(value), kind) and (kind is dict or len(found) == 2)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            is_one = False
        if not is_one:
            yield f"{as_option(name)} must be {needed}, but is {shown(value)}"


def _numbers(value: Any) -> Iterator[float]:
    """Yield the numbers of an option: one, or those of a list, which may be a text such as ``(0.9, 0.98)``."""
    if isinstance(value, str) and value.startswith(("(", "[")):
        with contextlib.suppress(ValueError, SyntaxError):
            value = ast.literal_eval(value)
    for number in value if isinstance(value, list | tuple) else [value]:
        if isinstance(number, int | float) and not isinstance(number, bool):
            yield number


def _range(least: float, greatest: float) -> str:
    """Return the text of a range for messages."""
    if greatest < _INF:
        return f"between {least:g} and {greatest:.10g}"
    return f"a number from {least:g} on" if least > -_INF else "a finite number"


def _schedule_problems(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of a schedule of learning rates, such as one that is 0 before the training ends.

    With fairseq such a training runs to its end, and learns nothing more.
    """
    name, last = values.get("lr_scheduler"), values.get("max_update") or 0
    warmup = values.get("warmup_updates") or 0
    rate = max(_numbers(values.get("lr")), default=0.0)
    if name == "inverse_sqrt" and warmup == 0:
        yield "--warmup-updates must be at least 1 with --lr-scheduler inverse_sqrt, but is 0"
    if name == "polynomial_decay":
        yield from _linear_problems(values, last, warmup, rate)
    if name == "cosine" and (values.get("lr_period_updates") or -1) <= 0 and last <= warmup:
        yield (
            f"--lr-scheduler cosine needs --max-update above --warmup-updates ({warmup:g}), or --lr-period-updates: "
            f"the updates of a period; --max-update is {last:g}"
        )
    if name == "cosine" and (values.get("min_lr") or 0) > rate:
        yield f"--min-lr ({values['min_lr']:g}) must be at most --lr ({rate:g})"
    if name == "triangular" and (values.get("lr_period_updates") or 0) <= 0:
        period = shown(values.get("lr_period_updates"))
        yield f"--lr-period-updates must be above 0 with --lr-scheduler triangular, but is {period}"
    end = values.get("stop_min_lr", -1)
    if name is not None and end >= max(rate, values.get("max_lr") or 0) > 0:
        yield f"--stop-min-lr ({end:g}) must be below --lr ({rate:g}): the training would end before its first update"
    if name == "tri_stage" and not values.get("phase_ratio"):
        stages = [values.get(stage) or 0 for stage in ("warmup_steps", "hold_steps", "decay_steps")]
        if stages[-1] == 0:
            yield "--decay-steps must be at least 1 with --lr-scheduler tri_stage without --phase-ratio, but is 0"
    if name == "tri_stage" and values.get("phase_ratio") and not last:
        yield "--phase-ratio needs --max-update: the number of updates that it divides"


def _schedule_warnings(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a schedule does not reach before the training ends, as in a trial of a few updates."""
    name, last = values.get("lr_scheduler"), values.get("max_update") or 0
    option = "warmup_steps" if name == "tri_stage" else "warmup_updates"
    warmup = values.get(option) or 0
    if name in _WITH_WARMUP and 0 < last < warmup:
        yield (
            f"{as_option(option)} ({warmup:g}) is above --max-update ({last:g}): the training ends in the warm-up, and "
            "does not reach --lr"
        )
    stages = sum(values.get(stage) or 0 for stage in ("warmup_steps", "hold_steps", "decay_steps"))
    if name == "tri_stage" and not values.get("phase_ratio") and 0 < last < stages:
        yield f"the stages of --lr-scheduler tri_stage have {stages:g} updates, but --max-update is {last:g}"


def _linear_problems(values: Mapping[str, Any], last: float, warmup: float, rate: float) -> Iterator[str]:
    """Yield the problems of ``--lr-scheduler polynomial_decay``."""
    total, end = values.get("total_num_update") or 0, values.get("end_learning_rate") or 0
    if total <= 0:
        yield (
            "--lr-scheduler polynomial_decay needs --max-update, or --total-num-update for another end: the number of "
            "updates over which the learning rate falls"
        )
    elif warmup > total:
        yield (
            f"--warmup-updates ({warmup:g}) must be at most --total-num-update ({total:g}): the learning rate would "
            "fall to its end in one step"
        )
    elif total < last and end == 0 < rate:
        yield (
            f"--total-num-update ({total:g}) must be at least --max-update ({last:g}), or --end-learning-rate above 0: "
            f"the learning rate would be 0 for the last {last - total:g} updates"
        )
    if end > rate:
        yield f"--end-learning-rate ({end:g}) must be at most --lr ({rate:g})"


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


def _train_step(step: Function, trainer: Trainer, *args: Any, **others: Any) -> Any:
    """Patch ``Trainer.train_step`` of fairseq/trainer.py: warn once of updates with a learning rate of 0.

    They change nothing, as after ``--total-num-update`` in a training whose end is a number of epochs.
    """
    rate, done = trainer.get_lr(), trainer.get_num_updates()
    is_meant = not any(trainer.cfg.optimization.lr)
    if rate == 0 and done and not is_meant and not getattr(trainer, "has_warned_of_rate", False):
        trainer.has_warned_of_rate = True
        logger.warning(
            f"the learning rate is 0 after {done:,} updates, and further ones change nothing: give another "
            "--total-num-update, --end-learning-rate or --max-update"
        )
    return step(trainer, *args, **others)


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
