"""Check the parts of a checkpoint with which a training resumes: counts, place in the data, and state of the optimizer.

fairseq takes them as they are. With a damaged one it fails at a later place, or ends as if nothing were left to train.
"""

import math
import os
from collections.abc import Iterator, Mapping
from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor

from s2sft_fairseq.checkpoints.finite_weights import not_finite
from s2sft_fairseq.errors import UserError, shown

_MOST = 2**31 - 1
"""The largest count that is taken for one: seeds are made of epochs."""
_SHOWN = 5


def check_training_state(
    path: str | os.PathLike[str], state: Mapping[str, Any], *, with_optimizer: bool, with_meters: bool = True
) -> None:
    """Check the counts and states of a checkpoint before a training resumes.

    Args:
        path: the file, for the message.
        state: the checkpoint, upgraded by fairseq.
        with_optimizer: whether the state of the optimizer is needed; false with ``--reset-optimizer``.
        with_meters: whether the numbers of the log and the best value are needed; false with ``--reset-meters``.

    Raises:
        UserError: naming the file and the first problems, each with what is needed and what is found.
    """
    problems = [*_history_problems(state.get("optimizer_history")), *_extra_problems(state.get("extra_state"))]
    if with_optimizer:
        problems += _optimizer_problems(state.get("last_optimizer_state"))
        has_moments = not problems and bool(state["last_optimizer_state"]["state"])
        if has_moments and state["optimizer_history"][-1]["num_updates"] == 0:
            problems.append("optimizer_history.num_updates must be above 0 where moments are, but is 0 or missing")
    if with_meters and isinstance(extra := state.get("extra_state"), dict):
        problems += _meter_problems(extra)
    if problems:
        heading = f"{path}: the training cannot be resumed from it:"
        raise UserError.of(problems, heading, most=_SHOWN)


def check_moments(path: str | os.PathLike[str], optimizer: torch.optim.Optimizer) -> None:
    """Check that the loaded state of an optimizer has the shapes of its parameters.

    Raises:
        UserError: naming the file and the first state that has another shape.
    """
    for group, members in enumerate(optimizer.param_groups):
        for number, parameter in enumerate(members["params"]):
            for name, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor) and not _fits(value.shape, parameter.shape):
                    raise UserError(
                        f"{path}: last_optimizer_state has {name} of shape {tuple(value.shape)} for parameter {number} "
                        f"of group {group}, whose shape is {tuple(parameter.shape)}: give --reset-optimizer, or the "
                        "options of the training"
                    )


def _fits(shape: torch.Size, parameter: torch.Size) -> bool:
    """Return whether a state is a number, or has the shape of its parameter, or that of its rows or columns."""
    if shape.numel() == 1 or tuple(shape) in (tuple(parameter[:-1]), (*parameter[:-2], *parameter[-1:])):
        return True
    return len(shape) == len(parameter) and all(size in (1, most) for size, most in zip(shape, parameter, strict=True))


def _history_problems(history: Any) -> Iterator[str]:
    if not isinstance(history, list) or not history or not isinstance(history[-1], dict):
        yield f"optimizer_history must be a list of objects, but is {shown(history)}"
        return
    last = history[-1]
    yield from _count_problems(last, "optimizer_history", num_updates=0)
    for name in ("criterion_name", "optimizer_name"):
        if not isinstance(last.get(name), str):
            yield f"optimizer_history.{name} must be a text, but is {shown(last.get(name))}"
    scheduler = last.get("lr_scheduler_state")
    if not isinstance(scheduler, dict):
        yield f"optimizer_history.lr_scheduler_state must be an object, but is {shown(scheduler)}"
        return
    rate = scheduler.get("lr", 0)
    if not _is_finite(rate) or rate < 0:
        yield f"optimizer_history.lr_scheduler_state.lr must be a number from 0 on, but is {shown(rate)}"
    best = scheduler.get("best")  # infinite until the first validation
    if best is not None and not _is_value(best):
        yield f"optimizer_history.lr_scheduler_state.best must be a number, but is {shown(best)}"


def _extra_problems(extra: Any) -> Iterator[str]:
    if not isinstance(extra, dict) or not isinstance(extra.get("train_iterator"), dict):
        yield f"extra_state must be an object with a train_iterator, but is {shown(extra)}"
        return
    place = extra["train_iterator"]
    yield from _count_problems(place, "train_iterator", epoch=1, iterations_in_epoch=0)
    optional = {"version": 1, "ranks": 1, "examples": 0}
    yield from _count_problems(place, "train_iterator", **{name: optional[name] for name in optional if name in place})
    if not isinstance(place.get("shuffle", True), bool):
        yield f"train_iterator.shuffle must be True or False, but is {shown(place['shuffle'])}"
    if not isinstance(place.get("batches", ""), str):
        yield f"train_iterator.batches must be a text, but is {shown(place['batches'])}"
    for name in ("read", "read_before"):
        if name in place and not _is_set(place[name], may_be_none=name == "read_before"):
            yield f"train_iterator.{name} must be a tensor of bytes, but is {shown(place[name])}"
    count = place.get("iterations_in_epoch")
    if "read" in place and type(count) is int and count == 0:
        yield "train_iterator.iterations_in_epoch must be above 0 where examples were read, but is 0"
    if not _is_finite(extra.get("previous_training_time", 0)):
        time = shown(extra["previous_training_time"])
        yield f"extra_state.previous_training_time must be a finite number, but is {time}"


def _meter_problems(extra: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of the best value and of the meters, which are lists of priority, name, class and numbers."""
    for name in ("best", "val_loss"):
        value = extra.get(name, 0)
        was_not_validated = name == "val_loss" and value is None
        if not (was_not_validated or _is_finite(value)):
            yield f"extra_state.{name} must be a finite number, but is {shown(value)} (--reset-meters forgets it)"
    metrics = extra.get("metrics", {})
    if not isinstance(metrics, dict):
        yield f"extra_state.metrics must be an object, but is {shown(metrics)} (--reset-meters forgets it)"
        return
    for group, found in metrics.items():
        name = f"extra_state.metrics.{group!s:.40}"
        if not isinstance(found, list | tuple) or not all(map(_is_meter, found)):
            yield f"{name} must be a list of meters, but is {shown(found)} (--reset-meters forgets them)"
        elif group == "default" and "wall" not in [name for _, name, *_ in found]:
            yield f"{name} must have the meter wall, but lacks it (--reset-meters forgets them)"


def _is_meter(entry: Any) -> bool:
    if not isinstance(entry, list | tuple) or len(entry) != 4 or not isinstance(entry[3], dict):
        return False
    return all(value is None or _is_value(value) for value in entry[3].values())


def _is_value(value: Any) -> bool:
    """Return whether a value is a number, also an infinite one, or several: BLEU's counts are an array of NumPy."""
    return isinstance(value, Number | Tensor | np.ndarray) and not isinstance(value, bool)


def _is_set(value: Any, *, may_be_none: bool) -> bool:
    if value is None:
        return may_be_none
    return isinstance(value, Tensor) and value.dtype == torch.uint8 and value.dim() == 1


def _is_finite(value: Any) -> bool:
    if isinstance(value, Tensor):  # of trainings with several ranks, before this package made it a number
        return value.numel() == 1 and bool(value.isfinite())
    return isinstance(value, int | float) and math.isfinite(value)


def _count_problems(parts: Mapping[str, Any], place: str, **least: int) -> Iterator[str]:
    for name, lowest in least.items():
        value = parts.get(name)
        if type(value) is not int or not lowest <= value <= _MOST:
            yield f"{place}.{name} must be a whole number from {lowest} to {_MOST}, but is {shown(value)}"


def _optimizer_problems(state: Any) -> Iterator[str]:
    if state is None:
        yield (
            "last_optimizer_state is missing, as with --no-save-optimizer-state: give --reset-optimizer to begin with "
            "a new optimizer and at update 0"
        )
        return
    if not isinstance(state, dict) or not isinstance(state.get("param_groups"), list):
        yield f"last_optimizer_state must be an object with a list param_groups, but is {shown(state)}"
        return
    for number, group in enumerate(state["param_groups"]):
        if not isinstance(group, dict):
            yield f"last_optimizer_state.param_groups.{number} must be an object, but is {shown(group)}"
            continue
        numbers = {name: value for name, value in group.items() if isinstance(value, float)}
        for name in (name for name, value in numbers.items() if not math.isfinite(value)):
            yield f"last_optimizer_state.param_groups.{number}.{name} must be finite, but is {numbers[name]:g}"
    moments = state.get("state")
    if not isinstance(moments, dict) or not all(isinstance(each, dict) for each in moments.values()):
        yield f"last_optimizer_state.state must be an object of objects, but is {shown(moments)}"
        return
    tensors = {
        f"last_optimizer_state.state.{number}.{name}": value
        for number, each in moments.items()
        for name, value in each.items()
        if isinstance(value, Tensor)
    }
    for name, what in not_finite(tensors.items()).items():
        yield f"{name} must be finite, but is {what}"
    for number, each in moments.items():
        step = each.get("step", 0)
        if not _is_finite(step) or step < 0:
            yield f"last_optimizer_state.state.{number}.step must be a number from 0 on, but is {shown(step)}"
