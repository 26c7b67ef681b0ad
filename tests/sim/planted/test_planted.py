"""Every planted mistake is found: a suite that finds nothing proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sim.planted.bugs import BUGS
from tests.sim.scenario import Broken, Story

SEEDS = 300
"""Most mistakes show within ten stories; this bounds the search for the shy ones."""

BY_NODE_TESTS = frozenset(
    {
        "a taken GPU is not refused",
        "a living lease is taken over",
        "the fence ignores the epoch",
    }
)
"""Two locks on one door: the other one hides the mistake from stories. tests/sim/test_node.py asks
the node itself, and there each of these breaks a rule."""


def test_there_are_at_least_25() -> None:
    assert len(BUGS) >= 25


def test_the_table_lists_each_of_them_once_and_nothing_else() -> None:
    lines = (Path(__file__).parent / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    assert [row[0] for row in rows[1:]] == list(BUGS)
    by_node = {row[0] for row in rows if "test_node.py" in row[2]}
    assert by_node == BY_NODE_TESTS


@pytest.mark.parametrize("name", sorted(BUGS.keys() - BY_NODE_TESTS))
def test_it_is_found(name: str) -> None:
    for seed in range(SEEDS):
        try:
            Story(seed, **BUGS[name].story()).play()
        except Broken:
            return
    pytest.fail(f"{SEEDS} stories do not notice that {name}")
