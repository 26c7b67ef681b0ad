"""`update: manual`: what a person lets through happens, and nothing else does."""

from __future__ import annotations

from typing import Any

from tests.e2e.world import World, until

OLD, NEW = ("--context", "4096"), ("--context", "8192")


def manual(world: World, node: str, args: tuple[str, ...], **more: Any) -> None:
    """One replica on `node`, committed."""
    world.profile(args=args, **more)
    pins = {"nodes": [node]} if node else {}
    world.placement(rollout={"update": "manual"}, **pins)
    world.commit(f"{node} {args}")


def runs(world: World) -> tuple[str, tuple[str, ...]]:
    """Node and profile arguments of the one launch that is ready."""
    (launch,) = until(
        "one is ready, and no other lives", lambda: len(world.living()) == 1 and world.ready()
    )
    ((node, shard),) = world.living()[launch]["shards"].items()
    return node, tuple(shard["spec"]["profile"]["profile"]["args"][2:])


def approved(world: World) -> str:
    """Held first, with exit code 4; then let through. What `approve` showed."""
    held = world.reconcile("--yes", code=4).out
    assert "wait for a person (ManualUpdate)" in held or "waits for a person (ManualUpdate)" in held
    shown = world.reconcile("approve", "--yes", code=0).out
    world.converge()
    return shown


def test_a_move_and_an_edit_are_let_through_and_outlive_the_node_that_went_there(
    world: World,
) -> None:
    manual(world, "gpu-a", OLD)
    world.converge()
    manual(world, "gpu-c", OLD)
    assert "none of the pinned gpu-c" in approved(world)
    assert runs(world) == ("gpu-c", OLD)
    manual(world, "gpu-c", NEW)
    assert "4096 → 8192" in approved(world)
    assert runs(world) == ("gpu-c", NEW)

    world.nodes.kill("gpu-c")
    world.node_documents(**{"gpu-c": {"state": "lost", "reason": "off"}})
    manual(world, "", NEW)
    world.forget()
    world.converge()
    (launch,) = world.ready()
    ((node, shard),) = world.living()[launch]["shards"].items()
    assert node in ("gpu-a", "gpu-b")
    assert tuple(shard["spec"]["profile"]["profile"]["args"][2:]) == NEW


def test_a_move_and_an_edit_in_one_commit_are_let_through_together(world: World) -> None:
    manual(world, "gpu-a", OLD)
    world.converge()
    manual(world, "gpu-b", NEW)
    shown = approved(world)
    assert "none of the pinned gpu-b; and the profile was edited" in shown
    assert "4096 → 8192" in shown
    assert runs(world) == ("gpu-b", NEW)


def test_an_approval_lasts_until_the_stop_that_comes_first_has_ended(world: World) -> None:
    """The stop takes longer than a pass: what ran before must not come back meanwhile."""
    world.placement(rollout={"update": "manual", "max_surge": 0})
    world.profile(args=OLD, drain_s=3)
    world.commit()
    world.converge()
    before = set(world.launches())
    world.profile(args=NEW, drain_s=3)
    world.commit("longer context")
    approved(world)
    (made,) = set(world.launches()) - before
    assert made in world.ready()
