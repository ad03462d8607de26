"""Folders of all schemes, each written once per session."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizer_folders import WRITERS


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory) -> Callable[[str], Path]:
    """``tokenizer_folder(name)``: a folder by its name in `WRITERS`, for reading only."""
    return functools.cache(lambda name: WRITERS[name](tmp_path_factory.mktemp(name)))
