"""What the models of this package take as texts in Python."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from s2sft_fairseq.errors import UserError

Text = str | Mapping[str, str] | Sequence[str]
"""A text, or the fields of one, such as passage and answer: a dict, a tuple, or a list among other texts."""
_SHOWN = 10  # problems of one call


def is_one(texts: Any) -> bool:
    """Whether this is one text; a list is several."""
    return isinstance(texts, str | Mapping | tuple)


def listed(texts: Any) -> list[Any]:
    """Return texts as a list; what is no text at all becomes its only item, for `fields_of` to refuse."""
    return list(texts) if isinstance(texts, Iterable) and not is_one(texts) else [texts]


def fields_of(texts: Sequence[Any], argument: str) -> list[list[str]]:
    """Return the fields of each text.

    Args:
        texts: of `listed`.
        argument: its name, for messages.

    Raises:
        UserError: naming the first ten items that are no texts.
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
    """Whether a text has no half of a surrogate pair, which a Python string can hold and UTF-8 cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
