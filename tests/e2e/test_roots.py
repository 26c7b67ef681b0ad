"""The root of a node's records is another one: nothing restarts, and nothing is lost sight of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.e2e.world import World, until
from tests.support.roots import move_root


def records(root: Path) -> dict[str, Any]:
    """Launch → phase, of all records in a root."""
    return {
        path.parent.name: json.loads(path.read_text())["phase"]
        for path in (root / "launches").glob("*/status.json")
    }


def test_with_its_former_root_named_nothing_restarts_and_an_edit_replaces_it(world: World) -> None:
    world.placement(replicas="per-node")
    world.commit()
    world.converge()
    before = world.ready()
    assert len(before) == 3
    name = sorted(world.nodes.nodes)[0]
    former = world.nodes[name].root
    (moved,) = records(former)

    new = move_root(world.nodes, name)
    world.node_documents(**{name: {"previous_roots": [str(former)]}})
    world.commit("another disk for the records")
    assert world.plan()["changes"] == []
    world.reconcile(code=0)
    assert world.ready() == before
    status = world.reconcile("status", "--output", "json").json()
    seen = {r["verdict"] for p in status["placements"] for r in p["replicas"]}
    assert seen == {"matching"}
    assert world.reconcile("logs", moved.rpartition("-")[0]).code == 0

    world.profile(args=("--token-time", "0.01"))
    world.commit("an edit")
    world.converge(90)
    assert records(former) == {moved: "ended"}
    (successor,) = records(new)
    assert records(new) == {successor: "running"}
    assert world.plan()["changes"] == []

    world.remove("placements/chat.yaml")
    world.commit("all of it")
    world.reconcile("approve", "--yes")
    world.converge(90)
    until("nothing is left", lambda: not any(map(world.nodes.processes, world.nodes.nodes)))


def test_a_former_root_that_is_not_named_shows_as_unknown_and_is_left_alone(world: World) -> None:
    name = sorted(world.nodes.nodes)[0]
    world.placement(nodes=[name])
    world.commit()
    world.converge()
    before = world.ready()
    move_root(world.nodes, name)
    ran = world.reconcile()
    assert ran.code in (3, 4), ran
    assert world.ready() == before
    assert "unknown" in world.reconcile("status").out
