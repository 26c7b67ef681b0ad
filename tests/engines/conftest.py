"""The option that writes goldens anew: look at the difference before it is committed."""

from __future__ import annotations

import os

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`pytest tests/engines --update-goldens`."""
    parser.addoption("--update-goldens", action="store_true", help="write expected.json anew")


@pytest.fixture(scope="session")
def update_goldens(request: pytest.FixtureRequest) -> bool:
    """Whether goldens are written instead of compared."""
    return bool(request.config.getoption("--update-goldens", default=False))


collect_ignore = [] if os.environ.get("REAL_ENGINES") else ["real"]
"""The real engines are large: `make test-engines` names their folder."""
