"""Runs the examples of docstrings."""

import doctest
from typing import Any


def run_examples(documented: Any, **names: Any) -> None:
    """Run the examples in the docstring of a class, and fail with doctest's output if a result differs."""
    told: list[str] = []
    (test,) = doctest.DocTestFinder(recurse=False).find(documented, globs=names)
    found = doctest.DocTestRunner().run(test, out=told.append)
    assert found.attempted and not found.failed, "".join(told)
