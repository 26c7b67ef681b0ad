"""Fixtures that several test folders use; tests/conftest.py makes them known everywhere.

Files of loopback nodes lie in short folders of their own: a Unix socket's path may have at most
108 bytes, and pytest's own temporary folders are long.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from reconciler.nodes.loopback import LoopbackFleet


class StartFleet(Protocol):
    """Starts a LoopbackFleet that ends with the test."""

    def __call__(self, count: int = 3, **options: Any) -> LoopbackFleet: ...


def temporary_folder(stack: ExitStack) -> Path:
    """A new folder that is removed when `stack` closes."""
    folder = Path(tempfile.mkdtemp(prefix="rcl-"))
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


@pytest.fixture
def start_fleet() -> Iterator[StartFleet]:
    """`start_fleet(3, options={"MaxSessions": "2"})`: real sshd nodes, gone after the test."""
    with ExitStack() as stack:

        def start(count: int = 3, **options: Any) -> LoopbackFleet:
            return stack.enter_context(LoopbackFleet(temporary_folder(stack), count, **options))

        yield start


@pytest.fixture
def loopback_fleet(start_fleet: StartFleet) -> LoopbackFleet:
    """Three real sshd nodes: node-1, node-2, node-3."""
    return start_fleet(3)
