"""DataFrames, recognised by their attributes: the packages that make them are not needed."""

from collections.abc import Iterator
from typing import Any


def column_names(value: Any) -> list[Any] | None:
    """Return the names of the columns of a DataFrame of pandas or polars, or of a table of Arrow; None for others."""
    names = getattr(value, "column_names" if hasattr(value, "to_pylist") else "columns", None)
    if names is None or not hasattr(value, "shape") or len(value.shape) != 2:
        return None
    return list(names)


def rows_of(frame: Any, names: list[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a DataFrame as dicts of these columns; a missing value is None."""
    columns = [[_plain(value) for value in frame[name]] for name in names]
    for cells in zip(*columns, strict=True):
        yield dict(zip(names, cells, strict=True))


def _plain(value: Any) -> Any:
    """Return a value of Arrow or NumPy as a value of Python."""
    for convert in ("as_py", "tolist"):
        if hasattr(value, convert):
            return getattr(value, convert)()
    return value
