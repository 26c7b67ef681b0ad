"""Properties of one plan over random situations, whatever the nodes show.

The situations need not be ones that the code could have brought about: a plan has to be safe over
what other versions, people and accidents leave behind.
"""

from __future__ import annotations

import dataclasses
import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.core.changes import Plan
from reconciler.core.codec import from_json, to_json
from reconciler.core.diff import diff
from reconciler.core.model import Desired, Limit
from reconciler.core.observed import NodeHold, Observed
from reconciler.core.plan import plan
from tests.core.ask_plan import lease
from tests.core.build_world import STATES, World
from tests.sim import oracle

NODES = ("n0", "n1", "n2", "n3")


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """A fleet in some state, well or not."""
    world = World()
    names = NODES[: draw(st.integers(1, 4))]
    for name in names:
        fabrics = draw(st.sampled_from([(), ("ib-a",), ("ib-a", "ib-b"), ("ib-b",)]))
        state = draw(st.sampled_from(["active"] * 12 + ["cordoned", "draining"]))
        klass = draw(st.sampled_from(["h100", "h100", "l40s"]))
        world = world.node(name, gpus=draw(st.integers(2, 8)), fabrics=fabrics, klass=klass)
        world = world.edit_node(name, state=state)
    percent = draw(st.sampled_from([10, 50, 100]))
    world = world.with_fleet(max_parallel=Limit(percent=percent))
    for number in range(draw(st.integers(1, 3))):
        wide = draw(st.booleans()) and len(names) > 1
        world = world.profile(
            f"f{number}",
            model=draw(st.sampled_from(["llama", "qwen"])),
            gpus_per_node=draw(st.integers(1, 2)),
            nodes=2 if wide else 1,
        )
        rollout = {
            "max_unavailable": draw(st.integers(0, 2)),
            "max_surge": draw(st.integers(0, 1)),
            "update": draw(st.sampled_from([*["rolling"] * 6, "manual"])),
        }
        world = world.placement(
            f"c{number}",
            f"f{number}",
            replicas=draw(st.integers(0, 4)),
            fabric="ib-a" if draw(st.booleans()) else "",
            rollout=rollout,
            spread=draw(st.booleans()),
        )
    world = _launches(draw, world, names)
    return _twists(draw, world, names)


def _launches(draw: st.DrawFn, world: World, names: tuple[str, ...]) -> World:
    for _ in range(draw(st.integers(2, 10))):
        number = draw(st.integers(0, len(world.placements) - 1))
        count = world.profiles[f"f{number}"].nodes
        on = tuple(draw(st.permutations(names))[:count])
        if len(on) < count:
            continue
        over = {"record": {"fingerprint": ""}} if draw(st.integers(0, 19)) == 0 else {}
        world = world.launch(
            f"c{number}-{draw(st.integers(0, 3))}",
            on=on,
            state=draw(st.sampled_from([*sorted(STATES), *["ready"] * 25])),
            absent=(1,) if count > 1 and draw(st.integers(0, 5)) == 0 else (),
            **over,
        )
    return world


def _twists(draw: st.DrawFn, world: World, names: tuple[str, ...]) -> World:
    """Edits since, and what is wrong with nodes."""
    for name in sorted(world.profiles):
        if draw(st.booleans()):
            world = world.edit(name, args=("--context", "8"))
    for name in sorted(world.placements):
        twist = draw(
            st.sampled_from(
                ["", "", "restart", "restart", "restart", "suspend", "remove", "rename"]
            )
        )
        if twist == "restart":
            world = world.edit_placement(name, restart="please")
        elif twist == "suspend":
            world = world.edit_placement(name, suspend=True)
        elif twist == "remove":
            world = world.remove_placement(name)
        elif twist == "rename":
            world = world.rename_placement(name, f"new-{name}")
    for name in names:
        twist = draw(st.sampled_from([*[""] * 25, "silent", "known", "lease", "hold", "lost"]))
        if twist in ("silent", "known"):
            world = world.silent(name, remembered=twist == "known")
        elif twist == "lease":
            world = world.answers_with(name, lease=lease(owner="other"))
        elif twist == "hold":
            world = world.answers_with(name, hold=NodeHold(who="alice"))
        elif twist == "lost":
            world = world.edit_node(name, state="lost", reason="off")
    return world


def decide(desired: Desired, observed: Observed) -> Plan:
    numbers = itertools.count()
    return plan(desired, observed, diff(desired, observed), lambda: f"x{next(numbers)}")


@settings(max_examples=400, deadline=None, derandomize=True)
@given(worlds())
def test_no_plan_breaks_a_safety_rule(world: World) -> None:
    desired, observed = world.desired, world.observed
    difference = diff(desired, observed)
    numbers = itertools.count()
    made = plan(desired, observed, difference, lambda: f"x{next(numbers)}")
    assert oracle.faults(desired, observed, difference, made) == []


@settings(max_examples=150, deadline=None, derandomize=True)
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_of_anything_never_matters(world: World, rng: object) -> None:
    desired, observed = world.desired, world.observed

    def shuffled(mapping: object) -> dict[str, object]:
        items = list(mapping.items())  # type: ignore[attr-defined]
        rng.shuffle(items)  # type: ignore[attr-defined]
        return dict(items)

    looks = {
        name: dataclasses.replace(
            look,
            answer=dataclasses.replace(look.answer, shards=tuple(reversed(look.answer.shards))),
        )
        if look.answer
        else look
        for name, look in observed.nodes.items()
    }
    other = dataclasses.replace(
        desired,
        nodes=shuffled(desired.nodes),
        placements=shuffled(desired.placements),
        profiles=shuffled(desired.profiles),
        models=shuffled(desired.models),
    )
    assert decide(desired, observed) == decide(other, Observed(observed.owner, shuffled(looks)))


@settings(max_examples=100, deadline=None, derandomize=True)
@given(worlds())
def test_a_plan_is_read_back_from_json_as_it_was(world: World) -> None:
    made = decide(world.desired, world.observed)
    again = from_json(Plan, to_json(made))
    assert to_json(again) == to_json(made)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(worlds())
def test_every_replica_that_is_not_as_wanted_is_named(world: World) -> None:
    """An idle reconciler and a stuck one must not look alike."""
    desired, observed = world.desired, world.observed
    difference = diff(desired, observed)
    made = decide(desired, observed)
    named = {c.address for c in made.changes}
    named |= {h.subject.partition(" ")[2] for h in made.holds}
    named |= {w.partition(" ")[2].partition(":")[0] for w in made.warnings}
    for replica in difference.replicas:
        calm = replica.verdict.value in ("matching", "starting", "suspended", "stopping")
        launches = {j.view.launch for j in replica.launches}
        if not calm and replica.replica not in named and not launches & named:
            ended = not replica.wanted and not any(j.view.alive for j in replica.launches)
            assert ended, f"{replica.replica} is {replica.verdict} and nothing says so"
