"""Import fairseq under Python 3.14, which prints the type ``Optional[str]`` as ``str | None``.

`interpret_dc_type` in fairseq/dataclass/utils.py recognizes an optional option by how Python prints its type, and runs
while fairseq is imported. So the function is replaced within the import of its module, before anything calls it.
"""

import sys
import types
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any, Union, get_args, get_origin

_MODULE = "fairseq.dataclass.utils"


def interpret_dc_type(field_type: Any) -> Any:
    """Return the type of the values of an option: ``str`` for `Any`, and X for ``Optional[X]``.

    Raises:
        RuntimeError: the type is a text, because its module postpones annotations.
    """
    if isinstance(field_type, str):
        raise RuntimeError("field should be a type")
    if field_type is Any:
        return str
    members = get_args(field_type)
    is_union = get_origin(field_type) in (Union, types.UnionType)
    return members[0] if is_union and members[-1] is type(None) else field_type


def install() -> None:
    """Replace the function as soon as fairseq is imported; do nothing if it already is."""
    if _MODULE not in sys.modules:
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds the one module that is changed, as Python's own finder does, and gives it another loader."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _MODULE:
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(Loader):
    """Runs a module, and then replaces its function."""

    def __init__(self, usual: Loader) -> None:
        self.usual = usual

    def create_module(self, spec: ModuleSpec) -> types.ModuleType | None:
        return self.usual.create_module(spec)

    def exec_module(self, module: types.ModuleType) -> None:
        self.usual.exec_module(module)
        module.interpret_dc_type = interpret_dc_type  # type: ignore[attr-defined]
