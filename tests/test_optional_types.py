"""Options of fairseq under Python 3.14. scripts/test_newest.sh runs more tests there."""

import importlib
import sys
from typing import Any, Optional, Union

import pytest
from fairseq.dataclass import ChoiceEnum
from fairseq.dataclass import utils as fairseq_utils

from s2sft_fairseq import optional_types
from s2sft_fairseq.optional_types import interpret_dc_type

_NUMBERS = (int, float, bool, list[int], ChoiceEnum(["a", "b"]), Any)


@pytest.mark.parametrize("kind", [*_NUMBERS, *(Optional[kind] for kind in _NUMBERS), Union[int, None], Union[int, str]])
def test_types_as_fairseq_reads_them(kind):
    if sys.version_info < (3, 14):
        assert interpret_dc_type(kind) == fairseq_utils.interpret_dc_type(kind)
    inner = kind.__args__[0] if kind in [Optional[each] for each in _NUMBERS] and kind is not Any else None
    assert inner is None or interpret_dc_type(kind) == inner


def test_new_spelling():
    assert interpret_dc_type(int | None) is int
    with pytest.raises(RuntimeError, match="field should be a type"):
        interpret_dc_type("Optional[int]")


def test_replaced_at_import(monkeypatch):
    """The function is replaced when the module is imported, and other modules are found as usual."""
    monkeypatch.delitem(sys.modules, "fairseq.dataclass.utils")
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    finders = sys.meta_path[:]
    optional_types.install()
    assert sys.meta_path[1:] == finders
    assert sys.meta_path[0].find_spec("fairseq.dataclass.configs", None) is None
    try:
        again = importlib.import_module("fairseq.dataclass.utils")
        assert again.interpret_dc_type is interpret_dc_type
        assert sys.meta_path == finders
    finally:
        sys.modules["fairseq.dataclass"].utils = fairseq_utils
    optional_types.install()
    assert sys.meta_path == finders
