"""Places and names change without surprises."""

from __future__ import annotations

from tests.e2e.world import World, until


def test_a_renamed_placement_restarts_nothing(world: World) -> None:
    world.placement("chat", replicas=3)
    world.commit()
    world.converge()
    before = world.ready()
    world.remove("placements/chat.yaml")
    world.placement("talk", replicas=3)
    world.commit("renamed")
    plan = world.plan()
    assert {c["symbol"] for c in plan["changes"]} == {"~"}
    world.converge()
    assert world.ready() == before
    assert world.plan()["changes"] == []
    assert "talk-0" in world.reconcile("status", code=0).out


def test_a_changed_pool_reads_misplaced_and_moves_within_the_limits(world: World) -> None:
    names = sorted(world.nodes.nodes)
    pools = {names[0]: {"pool": "old"}, names[1]: {"pool": "old"}, names[2]: {"pool": "new"}}
    world.node_documents(**pools)
    world.placement(pool="old", replicas=3)
    world.commit()
    world.converge()
    world.placement(pool="new", replicas=3)
    world.commit()
    plan = world.plan()
    assert {c["verdict"] for c in plan["changes"]} == {"misplaced"}
    first = world.reconcile()
    assert first.code in (0, 3)
    assert len(world.ready()) >= 2
    world.converge(90)
    until("all moved", lambda: len(world.ready()) == 3)
    nodes = {name for e in world.living().values() for name in e["shards"]}
    assert nodes == {names[2]}


def test_a_drained_node_is_emptied_and_a_cordoned_one_keeps_what_it_has(world: World) -> None:
    world.placement(replicas=3)
    world.commit()
    world.converge()
    names = sorted(world.nodes.nodes)
    world.node_documents(**{names[0]: {"state": "cordoned", "reason": "disk"}})
    world.commit()
    assert world.plan()["changes"] == []
    world.node_documents(**{names[0]: {"state": "draining", "reason": "disk"}})
    world.commit()
    world.converge(90)
    nodes = [name for e in world.living().values() for name in e["shards"]]
    assert names[0] not in nodes
    assert len(nodes) == 3


def test_labels_and_owners_are_updated_in_place(world: World) -> None:
    world.placement(replicas=1)
    world.commit()
    world.converge()
    before = world.ready()
    world.placement(replicas=1, labels={"team": "search"}, owner="ada")
    world.profile(start_timeout_s=90, stop_grace_s=7)
    world.commit()
    world.converge()
    assert world.ready() == before


def test_a_restart_is_asked_for_in_git(world: World) -> None:
    world.placement(replicas=2)
    world.commit()
    world.converge()
    before = set(world.living())
    world.placement(replicas=2, restart="2026-12-01 driver update")
    world.commit()
    world.converge(90)
    assert len(world.ready()) == 2
    assert not before & set(world.living())
    assert world.plan()["changes"] == []


def test_suspend_stops_and_keeps_the_place(world: World) -> None:
    world.placement("keep", replicas=3)
    world.placement("chat", replicas=1)
    world.commit()
    world.converge()
    world.placement("chat", replicas=1, suspend=True)
    world.commit()
    world.converge()
    assert {e["replica"] for e in world.living().values()} == {"keep-0", "keep-1", "keep-2"}
    world.placement("chat", replicas=1)
    world.commit()
    world.converge()
    assert len(world.ready()) == 4
