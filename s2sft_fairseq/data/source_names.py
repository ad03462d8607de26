"""The names of the fields of sources, which the ``config.json`` of a model folder records.

A model reads fields by their place, such as passage before answer. With names, an object gives the same text in any
order of its keys; without them an object has no order that counts, and is refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from s2sft_fairseq.data.text_files import split_fields
from s2sft_fairseq.errors import shown

NAMES = "source_names"
"""The key in ``config.json``."""


def names_problem(names: Any) -> str | None:
    """Return what is wrong with names that a file or a user gives; None if nothing is."""
    is_list = isinstance(names, list | tuple) and all(isinstance(name, str) and name for name in names)
    if is_list and names and len(set(names)) == len(names):
        return None
    return f"must be different names of fields, but is {shown(names)}"


def recorded_names(state: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of fields that a model records; () if it records no names."""
    names: Any = state.get(NAMES)
    return () if names_problem(names) else tuple(names)


def order_problem(keys: Sequence[str], names: Sequence[str]) -> str | None:
    """Return what is wrong with the keys of the fields in a file, in the order in which they are read.

    Files may have other keys than the model has names, but not the same names at other places.

    Args:
        keys: the keys.
        names: the names of the model; a model of one field takes any.
    """
    if len(names) < 2:
        return None
    moved = [key for place, key in enumerate(keys) if key in names and names.index(key) != place]
    if moved or len(keys) != len(names):
        in_order = " ".join(names)
        return f"must name the {len(names)} fields of the model in their order ({in_order}), but is {' '.join(keys)}"
    return None


def with_names(fields: Any) -> Any:
    """Return a named tuple, or a row of a DataFrame or a database, as a dict; any other value stays as it is."""
    if hasattr(fields, "_asdict"):
        return fields._asdict()
    keys = list(fields.keys()) if callable(getattr(fields, "keys", None)) else []
    is_row = not isinstance(fields, Mapping) and isinstance(fields, Iterable)
    has_names = bool(keys) and all(isinstance(key, str) for key in keys)
    return dict(zip(keys, fields, strict=True)) if is_row and has_names else fields


def fields_by_name(fields: Mapping[Any, Any], names: Sequence[str]) -> list[Any]:
    """Return the values of an object in the order of the model.

    Raises:
        ValueError: naming the fields that are missing or unknown; or the model has no names.
    """
    keys = _listed(fields)
    if not names:
        raise ValueError(
            f"is an object ({keys}), but the model has no names of fields: give a list of texts in the order of the "
            "fields, or record their names with s2sft export --source"
        )
    missing, unknown = [name for name in names if name not in fields], [key for key in fields if key not in names]
    problems = [f"lacks {_listed(missing)}"] if missing else []
    problems += [f"has {_listed(unknown)}"] if unknown else []
    if problems:
        raise ValueError(f"must have the fields {_listed(names)}, but {' and '.join(problems)}")
    return [fields[name] for name in names]


def fields_in_order(fields: str | Iterable[Any], names: Sequence[str], *, divided: bool) -> list[Any]:
    """Return the fields of a list, or a text as its only field.

    Args:
        fields: the text or the list.
        names: the names of the model.
        divided: whether separators in a text begin further fields.

    Raises:
        ValueError: their number is not that of the model.
    """
    parts = [fields] if isinstance(fields, str) else list(fields)
    count = len(split_fields(fields)) if divided and isinstance(fields, str) else len(parts)
    if len(names) > 1 and count != len(names):
        raise ValueError(f"must have the {len(names)} fields {_listed(names)}, but has {count}")
    return parts


def _listed(keys: Iterable[Any]) -> str:
    return f"{', '.join(map(str, keys)):.120}"
