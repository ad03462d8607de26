"""The texts that the models of this package accept in Python."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from s2sft_fairseq.corpora.frames import column_names, rows_of
from s2sft_fairseq.data.source_names import fields_by_name, fields_in_order, with_names
from s2sft_fairseq.errors import UserError

Text = str | Mapping[str, str] | Sequence[str]
"""A text, or its fields such as passage and answer: as a dict by the names that a model folder has, as a tuple in the
order of the model, or, within a list of texts, as a list."""
_SHOWN = 10  # problems that an error lists


def is_one(texts: Any) -> bool:
    """Return whether this is one text; a list holds several."""
    return isinstance(texts, str | Mapping | tuple)


def listed(texts: Any, argument: str = "sources", names: Sequence[str] = ()) -> list[Any]:
    """Return texts as a list. A value that is not a text becomes its only item, which `fields_of` then rejects.

    Of a DataFrame, these are the rows of the columns that have the names of the model's fields, or else the texts of
    its only column, or of the one with the usual name of the argument.

    Args:
        texts: one text or several.
        argument: the name of the argument.
        names: the names of the fields of a source; (): the model has none.

    Raises:
        UserError: it is a set, which has no order, bytes, or a DataFrame of other columns.
    """
    if isinstance(texts, set | frozenset | bytes | bytearray):
        why = "have an encoding" if isinstance(texts, bytes | bytearray) else "has no order"
        raise UserError(f"{argument} must be a text or a list of texts, but is a {type(texts).__name__}, which {why}")
    if (columns := column_names(texts)) is not None:
        return _of_frame(texts, columns, argument, names)
    return list(texts) if isinstance(texts, Iterable) and not is_one(texts) else [texts]


def _of_frame(frame: Any, columns: Sequence[Any], argument: str, names: Sequence[str]) -> list[Any]:
    usual = "tgt" if argument == "targets" else "src"
    if not names or not set(names).issubset(columns):
        names = [columns[0] if len(columns) == 1 else usual]
    if any(columns.count(name) != 1 for name in names):
        found, first = ", ".join(map(str, columns[:20])), columns[0] if columns else usual
        raise UserError(
            f"{argument} must be texts, but is a DataFrame of the columns {found}: give one of them, as in "
            f"frame[{first!r}], one named {usual}, or those that have the names of the model's fields"
        )
    rows = rows_of(frame, list(names))
    return list(rows) if len(names) > 1 else [row[names[0]] for row in rows]


def fields_of(texts: Sequence[Any], argument: str, names: Sequence[str] = ()) -> list[list[str]]:
    """Return the fields of each text.

    Args:
        texts: the result of `listed`.
        argument: the name of the argument, for messages.
        names: the names of the fields of a source in the order of the model; (): it has none, and takes no dicts.

    Raises:
        UserError: naming the first ten items that are not texts, or whose fields are not those of the model.
    """
    found, problems = [], []
    for number, text in enumerate(texts):
        what = f"{argument}[{number}]" if len(texts) > 1 else argument
        try:
            parts = _parts(text, names, divided=argument.startswith("source"))
        except ValueError as error:
            problems.append(f"{what} {error}")
            continue
        if not parts or not all(isinstance(part, str) for part in parts):
            problems.append(f"{what} must be a text, or a dict, a tuple or a list of texts, but is {text!r:.60}")
        elif not all(map(is_unicode, parts)):
            problems.append(f"{what} must be text that UTF-8 can hold, but has half a surrogate pair: {text!r:.60}")
        found.append(parts)
    if problems:
        raise UserError.of(problems, most=_SHOWN)
    return found


def _parts(text: Any, names: Sequence[str], *, divided: bool) -> list[Any]:
    """Return the fields of a text in the order of the model; [] for a value that is no text.

    Raises:
        ValueError: they are not the fields of the model.
    """
    text = with_names(text)
    if isinstance(text, Mapping):
        return fields_by_name(text, names) if text else []
    return fields_in_order(text, names, divided=divided) if isinstance(text, Iterable) else []


def is_unicode(text: str) -> bool:
    """Return whether UTF-8 can encode a text: a Python string may hold lone surrogates, which UTF-8 cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)
