"""The checks of real_gpus.py against a real NVIDIA driver: `make test-gpu`.

Skipped by name where there is none. Nothing from a network; memory is taken on a GPU that is free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from reconciler.core.codec import from_json, to_json
from reconciler.core.observed import NodeAnswer
from tests.agent.harness import Node
from tests.agent.real_gpus import CHECKS, LOOK_S, has_driver, real_node

pytestmark = pytest.mark.skipif(not has_driver(), reason="no NVIDIA driver on this machine")


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Node]:
    """This machine as a node."""
    node = real_node(tmp_path / "real")
    yield node
    node.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_real_driver(real: Node, check: Callable[[Node], str]) -> None:
    why = check(real)
    if why:
        pytest.skip(why)


def test_the_answer_of_a_real_node_reads_as_the_types_of_the_reconciler(real: Node) -> None:
    answer = from_json(NodeAnswer, real.ask("observe", deadline_s=LOOK_S))
    assert answer.gpus.items
    assert from_json(NodeAnswer, to_json(answer)) == answer
