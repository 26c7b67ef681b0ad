"""A revision that removes too much is held until a person approves exactly that."""

from __future__ import annotations

from tests.e2e.world import World, until


def test_a_deleted_placement_of_many_replicas_is_held_and_approve_lets_exactly_it_through(
    world: World,
) -> None:
    world.placement("chat", replicas=6)
    world.placement("other", replicas=2)
    world.commit()
    world.converge()
    before = set(world.living())

    world.remove("placements/chat.yaml")
    world.commit("gone")
    held = world.reconcile("--wait", "--timeout", "10")
    assert held.code == 4, held
    assert set(world.living()) == before

    world.reconcile("approve", "--yes", code=0)
    # More than what was approved is held again, all of it.
    world.remove("placements/other.yaml")
    world.commit("more gone")
    assert world.reconcile().code == 4
    assert set(world.living()) == before

    world.git("revert", "--no-edit", "HEAD")
    world.converge()
    left = until("six are gone", lambda: len(world.living()) == 2 and world.living())
    assert {entry["replica"] for entry in left.values()} == {"other-0", "other-1"}


def test_an_emptied_repo_is_held(world: World) -> None:
    world.placement(replicas=4)
    world.commit()
    world.converge()
    before = set(world.living())
    for path in ("placements/chat.yaml", "catalog/profile-tiny.yaml", "catalog/model-tiny.yaml"):
        world.remove(path)
    world.commit("everything gone")
    assert world.reconcile().code == 4
    world.remove("nodes/all.yaml")
    world.commit("nodes too")
    assert world.reconcile().code in (1, 4)
    world.remove("fleet.yaml")
    world.commit("the fleet itself")
    assert world.reconcile().code in (1, 4)
    assert set(world.living()) == before


def test_one_replica_may_go_without_asking(world: World) -> None:
    world.placement(replicas=4)
    world.commit()
    world.converge()
    world.placement(replicas=3)
    world.commit()
    world.converge()
    assert {e["replica"] for e in world.living().values()} == {"chat-0", "chat-1", "chat-2"}
