"""Choose checkpoints of a training (the last, the best, or those that match a pattern) and average their weights."""

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.checkpoints.finite_weights import check_finite
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.progress import bar

AVERAGED = "averaged_from"
"""The key of an average's ``extra_state`` with the names of its checkpoints."""
# fairseq's names of checkpoints: at the end of an epoch, after a number of updates, and of --keep-best-checkpoints.
_OF_TRAINING = re.compile(r"checkpoint(?P<epoch>\d+)\.pt|checkpoint_(?P<within>\d+)_(?P<updates>\d+)\.pt")
_OF_KIND = {
    "epoch": (re.compile(r"checkpoint(\d+)\.pt"), "checkpoint3.pt"),
    "update": (re.compile(r"checkpoint_\d+_(\d+)\.pt"), "checkpoint_3_4000.pt"),
}
_BEST = re.compile(r"checkpoint\.best_.+_(-?\d+\.\d{3})\d*\.pt")


def choose_checkpoints(folder: Path, last: int | None, best: int | None, pattern: str | None) -> list[Path]:
    """Return the checkpoints that one of the three options of ``s2sft average`` selects.

    Args:
        folder: the folder of the checkpoints.
        last: ``--last``, or None.
        best: ``--best``, or None.
        pattern: ``--pattern``, or None.

    Raises:
        UserError: if there are too few of them, the number is below 1, or the pattern is an absolute path.
    """
    for option, number in (("--last", last), ("--best", best)):
        if number is not None and number < 1:
            raise UserError(f"{option} must be at least 1, but is {number}")
    if last is not None:
        return last_checkpoints(folder, last)
    if best is not None:
        return best_checkpoints(folder, best)
    if Path(pattern or "").is_absolute():
        raise UserError(f"--pattern must be of names in the folder, but is {pattern}")
    if not (paths := sorted(folder.glob(pattern or ""))):
        raise UserError(f"{folder} has no file whose name matches --pattern {pattern}")
    return paths


def last_checkpoints(folder: Path, number: int) -> list[Path]:
    """Return the last checkpoints of a training, of epochs and of updates within them, the oldest first.

    Raises:
        UserError: if there are fewer than ``number``.
    """
    found = _matching(folder, _OF_TRAINING, _place_in_training)
    return _some(folder, found[-number:], number, "checkpoint3.pt or checkpoint_3_4000.pt")


def last_of_kind(folder: Path, kind: str, number: int, bound: int | None = None) -> list[Path]:
    """Return the last checkpoints of epochs or of updates, the oldest first, as fairseq's script chooses them.

    Args:
        folder: the folder of the checkpoints.
        kind: ``epoch`` or ``update``.
        number: how many.
        bound: the last epoch or update that may be among them; None: any.

    Raises:
        UserError: if there are fewer than ``number``, or the number is below 1.
    """
    if number < 1:
        raise UserError(f"--num-{kind}-checkpoints must be at least 1, but is {number}")
    pattern, example = _OF_KIND[kind]
    found = _matching(folder, pattern, lambda found: int(found[1]))
    if bound is not None:
        found = [path for path in found if int(pattern.fullmatch(path.name)[1]) <= bound]  # type: ignore[index]
    return _some(folder, found[-number:], number, example)


def _place_in_training(found: re.Match[str]) -> tuple[int, float]:
    if found["epoch"]:
        return int(found["epoch"]), math.inf
    return int(found["within"]), int(found["updates"])


def best_checkpoints(folder: Path, number: int) -> list[Path]:
    """Return the best checkpoints that ``--keep-best-checkpoints`` kept, the best first.

    Raises:
        UserError: if there are fewer than ``number``.
    """
    found = _matching(folder, _BEST, lambda found: float(found[1]))
    if found and _greater_is_better(load_checkpoint(found[0], lazily=True)):
        found.reverse()
    names = "checkpoint.best_loss_3.1234.pt, which --keep-best-checkpoints keeps"
    return _some(folder, found[:number], number, names)


def average_checkpoints(paths: Sequence[Path]) -> dict[str, Any]:
    """Return the first checkpoint with the weights averaged over all, without the optimizer's state and held-out loss.

    Integer tensors must be equal in all checkpoints. Tensors that share memory in all of them, such as a tied matrix,
    still share it in the result.

    Raises:
        UserError: if a file cannot be read, its weights have other names or shapes than those of the first, or weights
            are not finite.
    """
    states = [load_checkpoint(path, lazily=True) for path in bar(paths, "read", " checkpoints")]
    problems = [
        f"{path} must hold 'model', but holds {', '.join(map(str, state)) or 'nothing'}"
        for path, state in zip(paths, states, strict=True)
        if not isinstance(state.get("model"), dict)
    ]
    if problems:
        raise UserError.of(problems)
    models = [state["model"] for state in states]
    for path, model in zip(bar(paths, "check", " checkpoints"), models, strict=True):
        check_finite(path, model)
    problems = [
        f"{path}: {name} {what}, unlike in {paths[0]}"
        for path, model in zip(paths[1:], models[1:], strict=True)
        for name, what in _differences(models[0], model)
    ]
    if problems:
        raise UserError.of(problems, f"{len(problems)} differences between checkpoints of one training:", most=20)
    averaged: dict[str, Tensor] = {}
    for name in bar(models[0], "average", " tensors"):
        twin = next((other for other in averaged if all(_is_same(model, name, other) for model in models)), None)
        averaged[name] = averaged[twin] if twin else _mean([model[name] for model in models])
    kept = {name: value for name, value in (states[0].get("extra_state") or {}).items() if name != "val_loss"}
    kept[AVERAGED] = [path.name for path in paths]
    return {**states[0], "model": averaged, "last_optimizer_state": None, "extra_state": kept}


def check_replaceable(output: Path) -> None:
    """Check that a file to write replaces nothing but an earlier average.

    Raises:
        UserError: the file exists and is no average.
    """
    if not output.exists():
        return
    extra_state = load_checkpoint(output, lazily=True).get("extra_state")
    if not isinstance(extra_state, dict) or AVERAGED not in extra_state:
        raise UserError(f"--output must be a new file or an earlier average, but {output} is another checkpoint")


def _differences(first: dict[str, Tensor], other: dict[str, Tensor]) -> list[tuple[str, str]]:
    found = [(name, "is missing") for name in first if name not in other]
    found += [(name, "is there") for name in other if name not in first]
    for name in first.keys() & other.keys():
        if first[name].shape != other[name].shape:
            found.append((name, f"has the shape {tuple(other[name].shape)}"))
        elif not first[name].is_floating_point() and not torch.equal(first[name], other[name]):
            found.append((name, "is another number"))
    return found


def _is_same(model: dict[str, Tensor], name: str, other: str) -> bool:
    one, two = model[name], model[other]
    return one.data_ptr() == two.data_ptr() and one.shape == two.shape


def _mean(values: Sequence[Tensor]) -> Tensor:
    if not values[0].is_floating_point():
        return values[0]
    total = values[0].double()
    for value in values[1:]:
        total = total + value.double()
    return (total / len(values)).to(values[0].dtype)


def _matching(folder: Path, pattern: re.Pattern[str], place: Callable[[re.Match[str]], Any]) -> list[Path]:
    """Return the files whose names match, sorted by the key that `place` computes from the match."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    matches = [(found, path) for path in folder.iterdir() if (found := pattern.fullmatch(path.name))]
    return [path for _, path in sorted((place(found), path) for found, path in matches)]


def _some(folder: Path, paths: list[Path], number: int, names: str) -> list[Path]:
    if len(paths) < number:
        raise UserError(f"{folder} must hold at least {number} checkpoints such as {names}, but holds {len(paths)}")
    return paths


def _greater_is_better(state: dict[str, Any]) -> bool:
    options = (state.get("cfg") or {}).get("checkpoint") or {}
    return bool(options.get("maximize_best_checkpoint_metric", False))
