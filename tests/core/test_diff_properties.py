"""What holds for every world, whatever is wanted, seen, silent or damaged."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.core import observed as seen
from reconciler.core.codec import from_json, to_json
from reconciler.core.diff import diff
from reconciler.core.verdict import Diff, JudgedLaunch, Verdict
from tests.core.build_world import STATES, World

K = TypeVar("K")
V = TypeVar("V")

NODES = ("gpu-a", "gpu-b", "gpu-c", "gpu-d")
PLACEMENTS = ("chat", "talk")
ARGS = ((), ("--a",), ("--b",))
DAMAGE: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {},
    {"record_error": "damaged"},
    {"record": {"fingerprint": ""}},
    {"record": {"format": "9.0"}},
    {"record": {"fleet": "another"}},
    {"record": {"restart": "now"}},
    {"labels": seen.Labels(placement="talk", ordinal=1, replica="talk-1")},
    {"boot_id": "another-boot"},
)

launches = st.tuples(
    st.sampled_from(PLACEMENTS),
    st.integers(0, 3),
    st.permutations(NODES).flatmap(
        lambda order: st.integers(1, 2).map(lambda count: tuple(order[:count]))
    ),
    st.sampled_from(sorted(STATES)),
    st.dictionaries(st.integers(0, 1), st.sampled_from(sorted(STATES)), max_size=1),
    st.sets(st.integers(0, 1), max_size=1),
    st.sampled_from(DAMAGE),
    st.sampled_from(ARGS),
)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    world = World().with_nodes(*NODES).profile("llama")
    for name in PLACEMENTS:
        world = world.placement(name, "llama", replicas=3)
    for placement, ordinal, on, state, ranks, absent, damage, args in draw(
        st.lists(launches, max_size=8)
    ):
        world = world.edit("llama", args=args, nodes=len(on)).launch(
            f"{placement}-{ordinal}",
            on=on,
            state=state,
            ranks=ranks,
            absent=tuple(absent),
            **damage,
        )
    nodes = draw(st.integers(1, 2))
    world = world.edit("llama", args=draw(st.sampled_from(ARGS)), nodes=nodes)
    for name in PLACEMENTS:
        replicas = draw(st.sampled_from([0, 1, 2, 3, "per-node"]))
        suspend, restart = draw(st.booleans()), draw(st.sampled_from(["", "", "now"]))
        world = world.edit_placement(name, replicas=replicas, suspend=suspend, restart=restart)
    if draw(st.booleans()):
        world = world.remove_placement("talk")
    for node in NODES:
        world = world.edit_node(
            node, state=draw(st.sampled_from(["active", "active", "cordoned", "draining", "lost"]))
        )
        match draw(st.sampled_from(["answers"] * 4 + ["silent", "remembered", "twin", "partial"])):
            case "silent":
                world = world.silent(node)
            case "remembered":
                world = world.silent(node, remembered=True)
            case "twin":
                world = world.answers_with(node, machine_id="machine-gpu-a")
            case "partial":
                world = world.answers_with(node, shards_error="I/O error")
    if draw(st.booleans()):
        world = world.depart(draw(st.sampled_from(NODES)))
    return world


def everything(made: Diff) -> list[JudgedLaunch]:
    return [j for r in made.replicas for j in r.launches] + list(made.strays)


def shuffled(items: Mapping[K, V], order: int) -> dict[K, V]:
    pairs = list(items.items())
    return dict(pairs[order % (len(pairs) or 1) :] + pairs[: order % (len(pairs) or 1)])


@settings(max_examples=100, deadline=None)
@given(worlds(), st.integers(0, 5))
def test_the_order_of_files_nodes_and_answers_never_matters(world: World, order: int) -> None:
    desired, observed = world.desired, world.observed
    turned = {}
    for name, look in reversed(shuffled(observed.nodes, order).items()):
        if look.answer is not None:
            shards = tuple(reversed(look.answer.shards))
            look = dataclasses.replace(look, answer=dataclasses.replace(look.answer, shards=shards))
        turned[name] = look
    other = dataclasses.replace(
        desired,
        nodes=shuffled(desired.nodes, order),
        placements=shuffled(desired.placements, order),
    )
    one, two = diff(desired, observed), diff(other, dataclasses.replace(observed, nodes=turned))
    for a, b in zip(one.replicas, two.replicas, strict=True):
        for field in dataclasses.fields(a):
            assert getattr(a, field.name) == getattr(b, field.name), field.name
    assert one == two


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_the_shortcut_for_what_plainly_matches_says_what_the_table_says(world: World) -> None:
    desired, observed = world.desired, world.observed
    assert diff(desired, observed) == diff(desired, observed, shortcut=False)


def test_the_shortcut_makes_whole_values() -> None:
    world = World().with_nodes(*NODES).profile("llama").placement("chat", "llama", replicas=2)
    world = world.launch("chat-0", on="gpu-a").launch("chat-1", on="gpu-b")
    short = diff(world.desired, world.observed)
    long = diff(world.desired, world.observed, shortcut=False)
    assert to_json(short) == to_json(long)
    assert repr(short) == repr(long)
    assert from_json(Diff, to_json(short)) == long


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_a_launch_has_exactly_one_verdict(world: World) -> None:
    counts = Counter(j.view.launch for j in everything(diff(world.desired, world.observed)))
    assert set(counts.values()) <= {1}, f"judged more than once: {counts}"
    assert "missing" not in {
        j.verdict.value for j in everything(diff(world.desired, world.observed))
    }


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_whatever_is_alive_in_sight_is_judged_or_a_stranger(world: World) -> None:
    made = diff(world.desired, world.observed)
    judged = {j.view.launch for j in everything(made)}
    strangers = {name for names in made.strangers.values() for name in names}
    for look in world.observed.nodes.values():
        for shard in look.answer.shards if look.answer else ():
            if shard.alive:
                assert shard.launch in judged | strangers, f"{shard.launch} was forgotten"


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_unknown_and_unreachable_are_never_stopped_nor_started_a_second_time(world: World) -> None:
    made = diff(world.desired, world.observed)
    held = (Verdict.UNREACHABLE, Verdict.UNKNOWN)
    startable = (Verdict.MISSING, Verdict.EXITED, Verdict.TIMED_OUT)
    for replica in made.replicas:
        holding = [
            j
            for j in replica.launches
            if j.verdict is Verdict.UNREACHABLE or (j.verdict is Verdict.UNKNOWN and j.view.alive)
        ]
        for j in holding:
            assert not j.repair, f"{j.view.launch} would be stopped"
            assert not j.not_wanted, f"{j.view.launch} would be stopped"
        if holding and replica.wanted:
            assert replica.verdict not in startable, f"{replica.replica} would be started twice"
    for launch in everything(made):
        silent = {n for n, look in world.observed.nodes.items() if look.answer is None}
        places = {p.node for p in launch.view.places} & silent
        remembered = launch.view.silent_nodes == ()
        if places and not remembered:
            assert launch.verdict in held


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_each_placement_gets_as_many_replicas_as_it_asks_for_under_distinct_names(
    world: World,
) -> None:
    made = diff(world.desired, world.observed)
    names = Counter(r.replica for r in made.replicas)
    assert set(names.values()) <= {1}, f"one name twice: {names}"
    for placement in world.placements.values():
        if placement.replicas != "per-node":
            own = [r for r in made.replicas if r.wanted and r.placement == placement.name]
            assert len(own) == placement.replicas


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_ready_means_a_launch_whose_every_rank_answers(world: World) -> None:
    for replica in diff(world.desired, world.observed).replicas:
        for j in replica.launches:
            if j.view.ready:
                assert j.view.silent_nodes == ()
                assert all(j.view.shards[p.rank].alive for p in j.view.places)
        assert replica.ready == any(j.view.ready for j in replica.launches)


@settings(max_examples=100, deadline=None)
@given(worlds())
def test_at_most_one_replica_of_a_placement_is_the_canary_and_the_rest_keeps(world: World) -> None:
    made = diff(world.desired, world.observed)
    for name in world.placements:
        own = [r for r in made.replicas if r.wanted and r.placement == name and r.effective]
        canaries = [r.replica for r in own if r.effective and r.effective.canary]
        assert len(canaries) <= 1, f"{canaries} try a profile at once"
        assert not (canaries and any(r.effective and r.effective.rejected for r in own))
