"""The texts that the models of this package accept in Python."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from s2sft_fairseq.errors import UserError

Text = str | Mapping[str, str] | Sequence[str]
"""A text, or its fields such as passage and answer: as a dict, as a tuple, or, within a list of texts, as a list."""
_SHOWN = 10  # problems that an error lists


def is_one(texts: Any) -> bool:
    """Return whether this is one text; a list holds several."""
    return isinstance(texts, str | Mapping | tuple)


def listed(texts: Any) -> list[Any]:
    """Return texts as a list. A value that is not a text becomes its only item, which `fields_of` then rejects."""
    return list(texts) if isinstance(texts, Iterable) and not is_one(texts) else [texts]


def fields_of(texts: Sequence[Any], argument: str) -> list[list[str]]:
    """Return the fields of each text.

    Args:
        texts: the result of `listed`.
        argument: the name of the argument, for messages.

    Raises:
        UserError: naming the first ten items that are not texts.
    """
    found, problems = [], []
    for number, text in enumerate(texts):
        parts = [text] if isinstance(text, str) else list(text.values()) if isinstance(text, Mapping) else text
        parts = list(parts) if isinstance(parts, Iterable) else []
        what = f"{argument}[{number}]" if len(texts) > 1 else argument
        if not parts or not all(isinstance(part, str) for part in parts):
            problems.append(f"{what} must be a text, or a dict, a tuple or a list of texts, but is {text!r:.60}")
        elif not all(map(is_unicode, parts)):
            problems.append(f"{what} must be text that UTF-8 can hold, but has half a surrogate pair: {text!r:.60}")
        found.append(parts)
    if problems:
        rest = [f"{len(problems) - _SHOWN} more"] if len(problems) > _SHOWN else []
        raise UserError.of([*problems[:_SHOWN], *rest])
    return found


def is_unicode(text: str) -> bool:
    """Return whether UTF-8 can encode a text: a Python string may hold lone surrogates, which UTF-8 cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
