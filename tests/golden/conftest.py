"""What the recordings of this package's own behaviour have in common: how they are written again."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record",
        action="store_true",
        help="tests/golden: write curves, options and hypotheses anew, as they are now, in place of comparing them",
    )


@pytest.fixture(scope="session")
def recording(request: pytest.FixtureRequest) -> bool:
    """Whether what is recorded is to be written anew; the option is unknown where this folder is not named."""
    return request.config.getoption("--record", default=False)
