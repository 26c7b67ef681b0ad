"""The real engines, where REAL_ENGINES names the folder that `install` filled. Nothing is skipped.

Without that variable this folder is not collected (tests/engines/conftest.py).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def installed() -> Path:
    """The folder of engines."""
    return Path(os.environ["REAL_ENGINES"]).resolve()
