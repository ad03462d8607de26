"""The option that writes the recordings of this package's own behavior again."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record",
        action="store_true",
        help="tests/golden: write curves, options and hypotheses anew, as they are now, in place of comparing them",
    )


@pytest.fixture(scope="session")
def recording(request: pytest.FixtureRequest) -> bool:
    """Whether to write the recordings again; pytest does not know the option if this folder is not named."""
    return request.config.getoption("--record", default=False)
