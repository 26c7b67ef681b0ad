"""Nodes for the agent's tests; whatever a test starts is ended with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.agent.harness import Node, Specs


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[Callable[[], Node]]:
    """Makes nodes, each with an address of its own."""
    nodes: list[Node] = []

    def make() -> Node:
        nodes.append(Node(tmp_path / f"node{len(nodes)}"))
        return nodes[-1]

    yield make
    for node in nodes:
        node.close()


@pytest.fixture
def node(make_node: Callable[[], Node]) -> Node:
    return make_node()


@pytest.fixture
def specs(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Specs:
    """Specs for `node`; the agent is on it already, and compiled."""
    node.seed(tmp_path_factory.getbasetemp() / "agent")
    node.ask("hello")
    return Specs(node)
