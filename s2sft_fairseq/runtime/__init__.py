"""Patches of fairseq 0.12.3.1 for current Python, PyTorch and NumPy, and for mistakes that it does not explain.

Each module patches one part of fairseq, and has an `install()`. The docstring of a patch names the function and the
file that it changes, what fairseq does there, and what the patch does instead.
"""

import functools
import importlib
import inspect
import logging
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from s2sft_fairseq.progress import step

Function = Callable[..., Any]
"""A function of fairseq."""
_SCIENTIFIC = ("sklearn", "sklearn.metrics", "scipy", "scipy.stats")


@functools.cache
def install() -> None:
    """Install all patches. Further calls in the same process do nothing.

    Spawned workers import the plugin again, and so install the patches, too.
    """
    with _log_as_it_is(), _scientific_packages_later(), step("import PyTorch and fairseq"):
        from s2sft_fairseq.runtime import (
            checkpoints,
            cpu,
            data,
            gpu,
            lost_ranks,
            options,
            parts,
            preemption,
            search,
            sharding,
            shards,
            tensorboard,
            threads,
            updates,
            warnings,
        )

    # Patches of the same function nest, and the last one runs first. `cpu` comes after `checkpoints`: both wrap
    # `call_main`, and the processes of a training must be set up before its folder is locked.
    for module in (
        warnings,
        options,
        parts,
        data,
        search,
        shards,
        tensorboard,
        lost_ranks,
        preemption,
        checkpoints,
        sharding,
        cpu,
        gpu,
        updates,
        threads,
    ):
        module.install()


def wrap(owner: Any, name: str, around: Function) -> None:
    """Replace the function `name` of a module or a class by one that calls `around`.

    Args:
        owner: the module or class.
        name: the name of the function.
        around: called with the original function, bound if it is a class method, and the arguments of the call.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def patched(*args: Any, **options: Any) -> Any:
        return around(original, *args, **options)

    is_bound = isinstance(inspect.getattr_static(owner, name), classmethod | staticmethod)
    setattr(owner, name, staticmethod(patched) if is_bound else patched)


@contextmanager
def _log_as_it_is() -> Iterator[None]:
    """Within the block, imports do not change the log.

    fairseq/tasks/text_to_speech.py, frm_text_to_speech.py beside it, and the commands in fairseq_cli turn the whole log
    on.
    """
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        yield
    finally:
        root.setLevel(level)
        root.handlers[:] = handlers


@contextmanager
def _scientific_packages_later() -> Iterator[None]:
    """Within the block, replace scikit-learn and SciPy by modules that import them on first use, and hide pyarrow.

    fairseq/criterions/sentence_prediction.py and fairseq/tasks/audio_classification.py import them for their metrics,
    which takes half as long as PyTorch. fairseq/data/plasma_utils.py tries to import a part of pyarrow that no longer
    exists. pyarrow would start a thread, and Python 3.12 and later then warn of each fork.
    """
    stand_ins: dict[str, Any] = {name: _Later(name) for name in _SCIENTIFIC if name not in sys.modules}
    if "pyarrow" not in sys.modules:
        stand_ins["pyarrow"] = None
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name in stand_ins:
            del sys.modules[name]


class _Later(types.ModuleType):
    """A stand-in for a module, which imports the module when one of its functions is called."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if (inner := f"{self.__name__}.{name}") in _SCIENTIFIC:
            return _Later(inner)
        return lambda *args, **options: getattr(importlib.import_module(self.__name__), name)(*args, **options)
