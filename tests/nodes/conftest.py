"""Pools with the stand-in agent, closed after the test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest

from reconciler.nodes.pool import NodePool, PoolSettings
from tests.nodes.standin import package


class MakePool(Protocol):
    """Makes a pool that is closed with the test."""

    def __call__(self, owner: str = "me", **settings: Any) -> NodePool: ...


@pytest.fixture
def make_pool(tmp_path: Path) -> Iterator[MakePool]:
    """`make_pool(retry_base_s=0)`: settings but for those of a machine without ssh files."""
    with ExitStack() as stack:

        def make(owner: str = "me", **settings: Any) -> NodePool:
            given = {"home": tmp_path, "agent": package(), **settings}
            return stack.enter_context(NodePool(owner=owner, settings=PoolSettings(**given)))

        yield make
