"""Killed at every request boundary of apply: the next pass converges, and nothing runs twice."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.world import World, until

ROOT = Path(__file__).parents[2]
MOST = 60
"""Far more requests than one pass of this fleet makes; the walk ends when the pass survives."""

LEASES = 3
"""One for each node, before the first act."""


def die_at(world: World, boundary: int, when: str) -> str | None:
    """The request that was the last; None where the pass ended by itself."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.dying", str(world.repo), str(boundary), when],
        cwd=ROOT,
        env=world.env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode == 0:
        return None
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done.stdout.strip()


def assert_nothing_runs_twice(world: World) -> None:
    living = world.living()
    replicas = Counter(entry["replica"] for entry in living.values())
    assert max(replicas.values()) == 1, living
    gpus = Counter(
        (node, gpu)
        for entry in living.values()
        for node, shard in entry["shards"].items()
        for gpu in shard["spec"]["places"][shard["spec"]["rank"]]["gpus"]
    )
    assert max(gpus.values()) == 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_each_request_of_start_stop_and_replacement(world: World, when: str) -> None:
    world.profile("wide", nodes=2, gpus_per_node=2)
    world.placement("wide", profile="wide", replicas=1)
    world.placement("chat", replicas=2)
    world.commit()
    boundaries: list[str] = []
    for boundary in range(1, MOST):
        reached = die_at(world, boundary, when)
        if reached is None:
            break
        boundaries.append(reached)
    else:
        raise AssertionError(f"the pass never ended: {boundaries}")
    assert any(b.startswith("lease") for b in boundaries), boundaries
    assert any(b.startswith("start") for b in boundaries), boundaries

    world.converge(90)
    until("three ready", lambda: len(world.ready()) == 3)
    assert_nothing_runs_twice(world)

    # The three leases come first; what was carried out is not asked again, so count on from there.
    world.placement("chat", replicas=1)
    world.commit()
    assert (die_at(world, LEASES + 1, when) or "").startswith("stop")
    world.converge(90)
    until("two ready", lambda: len(world.ready()) == 2)
    assert_nothing_runs_twice(world)

    world.placement("wide", profile="wide", replicas=1, restart="again")
    world.commit()
    for _ in range(3):
        die_at(world, LEASES + 1, when)
    world.converge(90)
    until("two ready", lambda: len(world.ready()) == 2)
    assert_nothing_runs_twice(world)
    assert world.plan()["changes"] == []
