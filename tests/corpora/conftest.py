"""Fixtures that read a whole corpus."""

from collections.abc import Callable, Iterable, Mapping

import pytest

from s2sft_fairseq.corpora.reading import Example, Malformed


@pytest.fixture
def malformed() -> Malformed:
    """Collects what a reader cannot read."""
    return Malformed()


@pytest.fixture
def pairs() -> Callable[[Iterable[Example]], list[tuple[str, list[str]]]]:
    """Return source and references of each example, a line each."""
    return lambda examples: [(example.source_line(), example.reference_lines()) for example in examples]


@pytest.fixture
def sizes() -> Callable[[Mapping[str, Iterable[Example]]], dict[str, int]]:
    """Read the examples of each split and return their numbers."""
    return lambda splits: {split: len(list(examples)) for split, examples in splits.items()}
