"""Texts of options, such as ``--source-truncation left --num-roles 3``: the value of a setting of a recipe.

A configuration file is not trusted. Its texts may name only options of the lists below. None of these names a file, or
runs code as ``--user-dir`` does.
"""

import re
import shlex
from collections.abc import Collection, Iterator
from dataclasses import fields

from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.search_bounds import SEARCH

LAYOUT = (
    *("source_segments", "source_truncation", "source_field_positions", "source_start"),
    *("target_segment", "placeholder", "placeholder_segment", "max_source_positions", "max_target_positions"),
    *("block_length", "noise_schedule", "block_loss_weight", "word_flow_weight", "random_prob", "keep_prob"),
    *("num_segments", "num_roles", "num_turns", "regression", "relative_position_bins", "max_relative_position"),
    *("attention_dropout", "activation_dropout", "freeze_embeddings", "freeze_layers", "initial_std"),
    *("initial_locality", "lora_rank", "lora_alpha", "lora_dropout", "lora_targets"),
)
"""Options of ``s2sft train`` about the model and the layout of sequences."""
_SEVERAL = ("metrics",)
"""Options that take several values."""
MOST = 1_000_000
"""The largest number that an option may have: sizes need memory."""
_NUMBER = re.compile(r"-[\d.][\d.eE+-]*")


def layout_options() -> Collection[str]:
    """Return the names of the options that a layout may have."""
    return LAYOUT


def search_options() -> Collection[str]:
    """Return the names of the options of a search: those that a model folder may set."""
    return SEARCH


def scoring_options() -> Collection[str]:
    """Return the names of the options of ``s2sft evaluate`` that are no files."""
    of_texts = [field.name for field in fields(Settings)]
    return ["task", "lead", *of_texts, *(f"no_{name}" for name in of_texts)]


def words_of(text: str) -> list[str]:
    """Split a text as a shell does.

    Raises:
        UserError: a quotation mark is not closed.
    """
    try:
        return shlex.split(text)
    except ValueError as error:
        raise UserError(f"must be options as on a command line, but is {text!r:.60} ({error})") from None


def option_problems(text: str, known: Collection[str]) -> Iterator[str]:
    """Yield what is wrong with a text that is not trusted.

    Args:
        text: the options and their values.
        known: names of the options that it may have; an option must have its full name.
    """
    option, has_value = "", False
    for word in words_of(text):
        value = word.rpartition("=")[2]
        if _is_too_large(value):
            yield f"must have numbers of at most {MOST:,}, but has {value:.40}"
        if word.startswith("-") and not _NUMBER.fullmatch(word):
            option, equals, _ = word.partition("=")
            has_value = equals != ""
            name = option.removeprefix("--").replace("-", "_")
            if as_option(name) != option or name not in known:
                yield f"must not have {option:.60}: a file may have {', '.join(map(as_option, known))}"
        elif not option or (has_value and option.removeprefix("--") not in _SEVERAL):
            yield f"must be options and their values, but {word!r:.60} belongs to no option"
        else:
            has_value = True


def _is_too_large(text: str) -> bool:
    """Return whether a text is a number above `MOST` or not finite, in any form that Python reads, as 9_999_999."""
    try:
        return not abs(float(text)) <= MOST  # also true of NaN
    except ValueError:
        return False
