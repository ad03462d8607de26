"""The search arguments in Python, and the options of ``s2sft generate`` that they set."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from omegaconf import DictConfig

from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.inference.options import EARLY_STOPS, LENGTH_PENALTIES

MOST = 2**31 - 1
"""The largest whole number that an argument may have."""


class Argument(NamedTuple):
    """The option that an argument sets, and its valid values."""

    option: str
    """A field of fairseq's ``generation`` configuration, or of the task's."""
    kind: type | tuple[str, ...]
    """A type, or the allowed names."""
    least: float = -math.inf


ARGUMENTS: Mapping[str, Argument] = {
    "beam": Argument("beam", int, 1),
    "num_return": Argument("nbest", int, 1),
    "max_len": Argument("max_len_b", int, 0),
    "max_len_ratio": Argument("max_len_a", float, 0),
    "min_len": Argument("min_len", int, 0),
    "length_penalty": Argument("lenpen", float),
    "length_penalty_form": Argument("length_penalty", LENGTH_PENALTIES),
    "no_repeat_ngram": Argument("no_repeat_ngram_size", int, 0),
    "no_repeat_ngram_ignore": Argument("no_repeat_ngram_ignore", str),
    "early_stop": Argument("early_stop", EARLY_STOPS),
    "keep_unfinished": Argument("keep_unfinished", bool),
    "draft_placeholders": Argument("draft_placeholders", int, 0),
    "draft_source": Argument("draft_source", int, 0),
    "draft_blocks": Argument("draft_blocks", int, -1),
    "decode_blocks": Argument("decode_blocks", int, 0),
    "confidence": Argument("confidence", float, 0),
    "max_passes": Argument("max_passes", int, 0),
    "revise": Argument("revise", float, 0),
    "sampling": Argument("sampling", bool),
    "top_k": Argument("sampling_topk", int, 1),
    "top_p": Argument("sampling_topp", float, 0),
    "temperature": Argument("temperature", float, 0),
}


def apply(cfg: DictConfig, search: Mapping[str, Any], given: Mapping[str, Any], problems: Sequence[str] = ()) -> None:
    """Set the search options in fairseq's configuration; arguments take precedence over the model folder.

    Args:
        cfg: the configuration, changed in place.
        search: the search options that a model folder sets, by the names of the options.
        given: the arguments, by the names of `ARGUMENTS`; None leaves an option unchanged.
        problems: errors in other arguments, to report with those found here.

    Raises:
        UserError: naming every argument that is unknown, of a wrong type or out of range.
    """
    given = {name: value for name, value in given.items() if value is not None}
    if problems := [*_problems(cfg, given), *problems]:
        raise UserError.of(problems)
    for option, value in {**search, **{ARGUMENTS[name].option: value for name, value in given.items()}}.items():
        part = cfg.generation if option in cfg.generation else cfg.task
        if option not in part:
            raise UserError(f"the search of the model folder names {option}, which is no option of this model")
        part[option] = value


def named(error: UserError) -> UserError:
    """Return an error with the names of options replaced by those of the arguments."""
    text = str(error)
    for name, argument in sorted(ARGUMENTS.items(), key=lambda item: -len(item[1].option)):
        text = text.replace(as_option(argument.option), name)
    return UserError(text)


def _problems(cfg: DictConfig, given: Mapping[str, Any]) -> Iterator[str]:
    for name, value in given.items():
        if name not in ARGUMENTS:
            yield f"{name} is no argument of the search: {', '.join(ARGUMENTS)}"
            continue
        option, kind, least = ARGUMENTS[name]
        if option not in cfg.generation and option not in cfg.task:
            yield f"{name} is not supported by this kind of model"
        elif isinstance(kind, tuple):
            if value not in kind:
                yield f"{name} must be one of {', '.join(kind)}, but is {value!r:.60}"
        elif not _is_a(value, kind):
            what = {int: "a whole number", float: "a number", bool: "True or False", str: "a text"}[kind]
            yield f"{name} must be {what}, but is {value!r:.60}"
        elif kind in (int, float) and not least <= value <= (MOST if kind is int else sys.float_info.max):
            limits = f"from {least:g} to {MOST}" if kind is int else f"finite and at least {least:g}"
            yield f"{name} must be {limits}, but is {value!r:.60}"


def _is_a(value: Any, kind: type) -> bool:
    if kind in (int, float) and isinstance(value, bool):
        return False
    return isinstance(value, (int, float) if kind is float else kind)
