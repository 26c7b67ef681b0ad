"""Nodes that are down, frozen or lost; and what must not be done about them."""

from __future__ import annotations

from tests.e2e.world import World, until

DEADLINE_S = 10.0
"""A pass over this fleet (observe_timeout_s: 4) must end within this, whatever a node does."""


def one_per_node(world: World) -> dict[str, str]:
    """Node → launch."""
    world.fleet(observe_timeout_s=4)
    world.placement(replicas="per-node")
    world.commit()
    world.converge()
    assert len(world.ready()) == 3
    return {node: launch for launch, e in world.living().items() for node in e["shards"]}


def verdicts(world: World) -> dict[str, str]:
    status = world.reconcile("status", "--output", "json").json()
    return {
        replica["replica"]: replica["verdict"]
        for placement in status["placements"]
        for replica in placement["replicas"]
    }


def test_one_node_down_and_one_frozen_hold_only_themselves(world: World) -> None:
    where = one_per_node(world)
    down, frozen, fine = sorted(where)
    world.nodes.stop(down)
    world.nodes.freeze(frozen)
    try:
        before = set(world.ready())
        world.placement("more", replicas=1, nodes=[fine])
        world.commit()
        ran = world.reconcile()
        assert ran.code == 3, ran
        assert ran.seconds < DEADLINE_S
        until("the healthy node's replica", lambda: len(world.ready()) == 4)
        assert before < set(world.ready()), "a replica on a silent node was touched"
        seen = verdicts(world)
        assert sorted(v for k, v in seen.items() if k.startswith("chat-")) == [
            "matching",
            "unreachable",
            "unreachable",
        ]
    finally:
        world.nodes.thaw(frozen)


def test_replicas_of_a_lost_node_are_placed_elsewhere(world: World) -> None:
    world.fleet(observe_timeout_s=4)
    world.placement(replicas=3)
    world.commit()
    world.converge()
    dead = sorted(world.nodes.nodes)[0]
    victims = {launch for launch, e in world.living().items() if dead in e["shards"]}
    assert victims
    world.nodes.kill(dead)
    held = world.reconcile()
    assert held.code == 3, held
    assert len(world.ready()) == 3 - len(victims)

    world.node_documents(**{dead: {"state": "lost", "reason": "power supply burnt"}})
    world.commit("it is off, I have seen it")
    world.converge()
    until("three again", lambda: len(world.ready()) == 3)


def test_a_cold_start_while_a_node_is_silent_starts_nothing_that_may_live_there(
    world: World,
) -> None:
    world.fleet(observe_timeout_s=4)
    world.placement(replicas=3)
    world.commit()
    world.converge()
    silent = sorted(world.nodes.nodes)[0]
    # Without this operator's caches the next one knows nothing of what the node holds.
    world.forget()
    world.nodes.stop(silent)
    before = set(world.launches())
    ran = world.reconcile()
    assert ran.code == 3, ran
    assert set(world.launches()) == before
    world.nodes.start(silent)
    world.converge()
    assert set(world.launches()) == before
    assert world.plan()["changes"] == []


def test_a_changed_host_key_holds_that_node_and_says_what_to_do(world: World) -> None:
    where = one_per_node(world)
    strange = sorted(where)[0]
    real = world.nodes[strange].host_key
    other = world.nodes[sorted(where)[1]].host_key
    ssh = {**world.nodes[strange].ssh_document(), "host_key": other}
    world.node_documents(**{strange: {"ssh": ssh}})
    world.commit()
    before = set(world.living())
    ran = world.reconcile()
    assert ran.code == 3, ran
    assert "host key" in ran.out + ran.err
    assert real != other
    assert set(world.living()) == before


def test_a_reboot_is_not_a_crash_and_is_repaired(world: World) -> None:
    where = one_per_node(world)
    node = sorted(where)[0]
    world.nodes.reboot(node)
    assert where[node] not in world.ready()
    world.converge()
    ready = until("three again", lambda: len(world.ready()) == 3 and world.ready())
    assert where[node] not in ready
    kept = {launch for n, launch in where.items() if n != node}
    assert kept < set(ready)


def test_a_second_reconciler_is_told_who_holds_the_lease(world: World) -> None:
    world.placement(replicas=2)
    world.commit()
    with world.daemon():
        until("2 ready", lambda: len(world.ready()) == 2)
        world.placement(replicas=3)
        world.forget()
        world.git("add", "-A")
        ran = world.reconcile("--allow-dirty")
        assert ran.code == 4, ran
        assert "lease" in (ran.out + ran.err).lower()
        assert len(world.living()) == 2
