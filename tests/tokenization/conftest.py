"""Folders of every scheme, each written once in a session."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizer_folders import WRITERS


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory) -> Callable[[str], Path]:
    """``tokenizer_folder(name)``: a folder by its name in `WRITERS`, to be read only."""
    return functools.cache(lambda name: WRITERS[name](tmp_path_factory.mktemp(name)))
