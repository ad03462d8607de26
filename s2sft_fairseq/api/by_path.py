"""Pickling and copying of models by the path from which they were loaded."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from s2sft_fairseq.errors import UserError


class LoadedByPath:
    """A model that `pickle` and `copy` load again from its files.

    Its weights, locks and threads are in no pickle: that holds the arguments of ``from_pretrained``. So a model can be
    sent to another process that sees the same files, and what the files hold then counts.
    """

    from_pretrained: Callable[..., Any]
    _arguments: dict[str, Any] | None = None

    def loaded_from(self, **arguments: Any) -> Self:
        """Record the arguments of ``from_pretrained``, with absolute paths, and return the model."""
        self._arguments = {name: _absolute(value) for name, value in arguments.items()}
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how to load the model again.

        Raises:
            UserError: it was not made by ``from_pretrained``.
        """
        if self._arguments is None:
            raise UserError(
                f"this {type(self).__name__} cannot be pickled or copied, because it was not loaded by "
                f"{type(self).__name__}.from_pretrained: a pickle holds the path of the model"
            )
        return _load, (type(self), self._arguments)


def _load(kind: type[LoadedByPath], arguments: dict[str, Any]) -> Any:
    return kind.from_pretrained(**arguments)


def _absolute(value: Any) -> Any:
    """Return an existing path as an absolute one; a name on the hub and other values stay as they are."""
    is_path = isinstance(value, str | os.PathLike) and Path(value).exists()
    return str(Path(value).absolute()) if is_path else value
