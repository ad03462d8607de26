"""Servers for the tests, which are skipped if the extra `serve` is not installed."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest


def start(stack: ExitStack) -> Callable:
    """Return a function that starts servers, which end with the stack."""
    for name in ("fastapi", "uvicorn"):
        pytest.importorskip(name, reason="the extra serve is not installed")
    from served import serving

    return lambda *args, **options: stack.enter_context(serving(*args, **options))


@pytest.fixture
def serve() -> Iterator[Callable]:
    """Start a server: ``serve(model=None, access=None, **limits)``; see `served.Served`."""
    with ExitStack() as stack:
        yield start(stack)


@pytest.fixture(scope="module")
def shared() -> Iterator:
    """One server with narrow limits, for tests that leave nothing behind."""
    with ExitStack() as stack:
        yield start(stack)(max_batch=3, max_beam=4, max_tokens=10, max_length=20)
