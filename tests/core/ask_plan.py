"""Short questions to `plan`, for tests."""

from __future__ import annotations

import dataclasses
import itertools

from reconciler.core.changes import Change, Hold, Plan, Reason, StartStep, StopStep
from reconciler.core.diff import diff
from reconciler.core.observed import ApprovedChange, Lease
from reconciler.core.plan import plan
from tests.core.build_world import FLEET_ID, OWNER, World


def planned(world: World, *, owner: str = OWNER) -> Plan:
    """The plan of a world, with launch suffixes x0, x1, …"""
    numbers = itertools.count()
    observed = dataclasses.replace(world.observed, owner=owner)
    difference = diff(world.desired, observed)
    return plan(world.desired, observed, difference, lambda: f"x{next(numbers)}")


def change(world: World, address: str) -> Change:
    found = [c for c in planned(world).changes if c.address == address]
    assert len(found) == 1, f"{address}: {[(c.symbol.value, c.reason) for c in found]}"
    return found[0]


def symbols(made: Plan) -> dict[str, str]:
    """Address → symbol, `(…)` where nothing is done yet."""
    return {c.address: c.symbol.value if c.steps else f"({c.symbol.value})" for c in made.changes}


def waits(made: Plan) -> dict[str, Reason | None]:
    return {c.address: c.waits_for for c in made.changes if c.waits}


def holds(made: Plan) -> dict[str, Reason]:
    return {h.subject: h.reason for h in made.holds}


def hold(made: Plan, subject: str) -> Hold:
    found = [h for h in made.holds if h.subject == subject]
    assert len(found) == 1, f"{subject}: {[(h.subject, h.message) for h in made.holds]}"
    return found[0]


def started(made: Plan) -> dict[str, tuple[str, ...]]:
    """Replica → its nodes in rank order, for what is started now."""
    return {
        s.replica: tuple(x.node for x in s.shards) for s in made.steps if isinstance(s, StartStep)
    }


def gpus(made: Plan, replica: str) -> tuple[tuple[str, ...], ...]:
    """GPUs of a replica that is started now, by rank."""
    (step,) = (s for s in made.steps if isinstance(s, StartStep) and s.replica == replica)
    return tuple(tuple(p["gpus"]) for p in step.shards[0].spec["places"])


def stopped(made: Plan, *, voluntary: bool | None = None) -> list[str]:
    """Launches that are stopped now."""
    return sorted(
        s.launch for s in made.steps if isinstance(s, StopStep) and voluntary in (None, s.voluntary)
    )


def lease(**over: object) -> Lease:
    """The usual lease of a built node, with some fields changed."""
    usual = Lease(fleet=FLEET_ID, owner=OWNER, epoch=1, remaining_s=60.0)
    return dataclasses.replace(usual, **over)  # type: ignore[arg-type]


def approve(world: World, node: str, *changes: ApprovedChange) -> World:
    return world.answers_with(node, lease=lease(approvals=changes))


def chat(replicas: int = 4, *, gpus: int = 2, nodes: int = 2, **over: object) -> World:
    """`chat`: `replicas` ready replicas of one GPU each, on nodes that they fill in turn."""
    names = [f"gpu-{chr(97 + n)}" for n in range(nodes)]
    world = World().with_nodes(*names, gpus=gpus).profile("llama", gpus_per_node=1)
    world = world.placement("chat", "llama", replicas=replicas, **over)
    for n in range(replicas):
        world = world.launch(f"chat-{n}", on=names[n % nodes])
    return world


def proven(world: World) -> World:
    """`edit` after which no canary is needed: today's profile was ready here before."""
    return world.edit_placement("chat", restart="please")
