"""Worlds for the end-to-end tests: each test has nodes, a repo and a home of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.nodes.loopback import LoopbackFleet
from tests.e2e.world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Three nodes, a model and a profile; nothing is placed and nothing committed yet."""
    with LoopbackFleet(tmp_path / "nodes", names=("gpu-a", "gpu-b", "gpu-c")) as nodes:
        yield World(tmp_path, nodes)
