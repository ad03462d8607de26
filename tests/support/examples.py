"""Runs the examples of docstrings."""

import doctest
from typing import Any


def run_examples(documented: Any, **names: Any) -> None:
    """Run the examples in the docstring of a class, and fail with what doctest prints if one gives something else."""
    told: list[str] = []
    (test,) = doctest.DocTestFinder(recurse=False).find(documented, globs=names)
    found = doctest.DocTestRunner().run(test, out=told.append)
    assert found.attempted and not found.failed, "".join(told)
