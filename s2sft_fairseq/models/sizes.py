"""How the options of models are declared, each once: the default, the range and the help of a size in one place."""

import typing
from dataclasses import Field, field, fields
from enum import Enum
from typing import Any

from fairseq.dataclass import FairseqDataclass

from s2sft_fairseq.errors import as_option


def size(default: Any, description: str, *, least: float | None = None) -> Any:
    """Declare a size of the model: None on the command line, where what the model starts from may give it.

    Args:
        default: the value where nothing gives it; None if it is worked out from other sizes.
        description: for ``--help``.
        least: the least value.
    """
    return field(default=None, metadata={"help": description, "size": default, "least": least})


def number(default: float, description: str, *, least: float) -> Any:
    """Declare an option that is a number of at least ``least``."""
    return field(default=default, metadata={"help": description, "least": least})


def rate(default: float, description: str) -> Any:
    """Declare an option that is at least 0 and below 1, such as dropout."""
    return field(default=default, metadata={"help": description, "least": 0, "below": 1})


def flag(description: str) -> Any:
    """Declare an option that is on or off; by default it is off."""
    return field(default=False, metadata={"help": description})


def default_sizes(config: type[FairseqDataclass]) -> dict[str, Any]:
    """Return the default of each size of a model, by its name."""
    return {each.name: each.metadata["size"] for each in fields(config) if "size" in each.metadata}


def range_problems(config: type[FairseqDataclass], cfg: Any) -> list[str]:
    """Tell which options are out of their ranges; one that is newer than a checkpoint is missing there, and fine.

    Args:
        config: the class that declares the options.
        cfg: their values.
    """
    return [
        f"{as_option(each.name)} must be {range_}, but is {f'{value:g}' if isinstance(value, float) else value}"
        for each in fields(config)
        if (value := getattr(cfg, each.name, None)) is not None and (range_ := _missed_range(each, value))
    ]


def _missed_range(declared: Field, value: Any) -> str | None:
    """Return the range of an option that a value lies outside of."""
    least, below = declared.metadata.get("least"), declared.metadata.get("below")
    if least is not None and (value < least or (below is not None and value >= below)):
        return f"at least {least}" if below is None else f"at least {least} and below {below}"
    kinds = typing.get_args(declared.type) or (declared.type,)
    choices = [choice.value for kind in kinds if issubclass(kind, Enum) for choice in kind]
    if choices and str(value) not in choices:
        return f"one of {', '.join(choices)}"
    return None
