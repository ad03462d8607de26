"""The search arguments in Python, and the options of ``s2sft generate`` that they set."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from omegaconf import DictConfig

from s2sft_fairseq import other_names
from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.search_bounds import PYTHON, SEARCH, applicable

_OF_OPTIONS = {option: name for name, option in PYTHON.items()}
"""The argument for each option of ``s2sft generate``."""


def apply(cfg: DictConfig, search: Mapping[str, Any], given: Mapping[str, Any], problems: Sequence[str] = ()) -> None:
    """Set the search options in fairseq's configuration; arguments take precedence over the model folder.

    Args:
        cfg: the configuration, changed in place.
        search: the search options that a model folder sets, by the names of the options.
        given: the arguments, by the names of `PYTHON`; None leaves an option unchanged.
        problems: errors in other arguments, to report with those found here.

    Raises:
        UserError: naming every argument that is unknown, of a wrong type or out of range.
    """
    given = {name: plain(value) for name, value in given.items() if value is not None}
    if problems := [*_problems(cfg, given), *problems]:
        raise UserError.of(problems)
    chosen = {PYTHON[name]: value for name, value in given.items()}
    for option, value in {**applicable(search, chosen), **chosen}.items():
        part = cfg.generation if option in cfg.generation else cfg.task
        if option not in part:
            raise UserError(f"the search of the model folder names {option}, which is no option of this model")
        part[option] = value


def plain(value: Any) -> Any:
    """Return a number or text of NumPy as the same one of Python; any other value stays as it is."""
    return value.item() if isinstance(value, np.generic) else value


def values(cfg: DictConfig) -> dict[str, Any]:
    """Return the value of each argument that this kind of model has, by name."""
    found = {}
    for name, option in PYTHON.items():
        part = cfg.generation if option in cfg.generation else cfg.task
        if option in part:
            found[name] = part[option]
    return found


def named(error: UserError) -> UserError:
    """Return an error with the names of options replaced by those of the arguments."""
    text = str(error)
    for name, option in sorted(PYTHON.items(), key=lambda item: -len(item[1])):
        text = text.replace(as_option(option), name)
    return UserError(text)


def _problems(cfg: DictConfig, given: Mapping[str, Any]) -> Iterator[str]:
    for name, value in given.items():
        if name not in PYTHON:
            ours = other_names.hint(name, {**_OF_OPTIONS, **other_names.SEARCH})
            yield f"{name} is no argument of the search{ours}: {', '.join(PYTHON)}"
        elif PYTHON[name] not in cfg.generation and PYTHON[name] not in cfg.task:
            yield f"{name} is not supported by this kind of model"
        elif what := SEARCH[PYTHON[name]].problem(value):
            yield f"{name} {what}"
