"""Short questions to `diff`, for tests."""

from __future__ import annotations

from reconciler.core.diff import diff
from reconciler.core.verdict import Diff, JudgedLaunch, JudgedReplica
from tests.core.build_world import World


def judged(world: World) -> Diff:
    """The diff; that its shortcut says what the table says is held at every question."""
    made = diff(world.desired, world.observed)
    assert made == diff(world.desired, world.observed, shortcut=False)
    return made


def replica(world: World, name: str) -> JudgedReplica:
    found = [r for r in judged(world).replicas if r.replica == name]
    assert len(found) == 1, f"{name}: {len(found)} of {[r.replica for r in judged(world).replicas]}"
    return found[0]


def launch(world: World, name: str) -> JudgedLaunch:
    made = judged(world)
    everything = [j for r in made.replicas for j in r.launches] + list(made.strays)
    found = [j for j in everything if j.view.launch == name]
    assert len(found) == 1, f"{name}: {len(found)} of {[j.view.launch for j in everything]}"
    return found[0]


def verdict(world: World, name: str = "chat-0-s1") -> str:
    return launch(world, name).verdict.value


def wanted(world: World) -> list[str]:
    return [r.replica for r in judged(world).replicas if r.wanted]


def unwanted(world: World) -> list[str]:
    return [r.replica for r in judged(world).replicas if not r.wanted]
