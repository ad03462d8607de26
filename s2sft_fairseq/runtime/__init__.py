"""Patches of fairseq 0.12.3.1, for today's Python, PyTorch and NumPy, and for mistakes that it does not explain.

A module holds the patches of one part of fairseq, and has an `install()`. Each patch says which function of which file
it changes, what fairseq does there, and what happens in its place.
"""

import functools
import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@functools.cache
def install() -> None:
    """Install every patch, once in a process however often it is called.

    Spawned workers import the plugin again, and so install them too.
    """
    with _log_as_it_is():
        from s2sft_fairseq.runtime import checkpoints, cpu, data, options, search, warnings

    # Patches of one function nest, and the one that is installed last runs first: `cpu` comes behind `checkpoints`, for
    # both wrap `call_main`, and the processes of a training are set up before its folder is locked.
    for module in (warnings, options, data, search, checkpoints, cpu):
        module.install()


def wrap(owner: Any, name: str, around: Callable) -> None:
    """Replace the function `name` of a module or a class by one that calls `around`.

    Args:
        owner: the module or class.
        name: of the function.
        around: is called with the function, which is bound where it is a class method, and with its arguments.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def patched(*args: Any, **options: Any) -> Any:
        return around(original, *args, **options)

    is_bound = isinstance(inspect.getattr_static(owner, name), classmethod | staticmethod)
    setattr(owner, name, staticmethod(patched) if is_bound else patched)


@contextmanager
def _log_as_it_is() -> Iterator[None]:
    """Within it, imports leave the log as it is.

    fairseq/tasks/text_to_speech.py announces on import that an optional package is missing; it, frm_text_to_speech.py
    beside it, and the commands in fairseq_cli turn the whole log on.
    """
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers
