"""Every placement is tried on each node that it means, as if its own launches there had ended."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from reconciler.core.observed import Lease, NodeHold
from reconciler.core.trials import Trial, Trials, trials
from tests.core.build_world import World


def made(world: World) -> Trials:
    return trials(world.desired, world.observed)


def of(world: World, placement: str) -> dict[str, Trial]:
    """Node → its trial."""
    return {trial.node: trial for trial in made(world).each if trial.placement == placement}


def spec(trial: Trial) -> dict[str, Any]:
    assert trial.shard is not None, trial.why
    return dict(trial.shard.spec)


def two_nodes() -> World:
    world = World().with_nodes("gpu-a", "gpu-b", "gpu-c")
    return world.profile("wide", nodes=2, gpus_per_node=8).placement("wide", "wide")


def test_each_node_that_is_meant_is_tried_once_and_no_other() -> None:
    world = World().with_nodes("gpu-a", "gpu-b").node("gpu-x", pool="other")
    world = world.profile("small", gpus_per_node=2).placement("chat", "small", replicas=5)
    found = of(world, "chat")
    assert sorted(found) == ["gpu-a", "gpu-b"]
    for node, trial in found.items():
        (place,) = spec(trial)["places"]
        assert (place["node"], len(place["gpus"]), trial.replaces) == (node, 2, "")


def test_what_the_placement_runs_on_a_node_makes_room_there() -> None:
    world = World().node("gpu-a").profile("full", gpus_per_node=8).placement("chat", "full")
    found = of(world.launch("chat-0", on="gpu-a", name="chat-0-mine"), "chat")["gpu-a"]
    assert (found.runs, found.replaces) == (("chat-0-mine",), "chat-0-mine")
    assert len(spec(found)["places"][0]["gpus"]) == 8


def test_of_several_launches_on_a_node_one_place_is_tried() -> None:
    world = World().node("gpu-a").profile("half", gpus_per_node=4).placement("chat", "half")
    world = world.launch("chat-0", on="gpu-a", name="l0").launch("chat-1", on="gpu-a", name="l1")
    found = of(world, "chat")["gpu-a"]
    assert (found.runs, found.replaces) == (("l0", "l1"), "l0")
    (held,) = [b.places[0].gpus for b in world.launches if b.launch == "l0"]
    assert spec(found)["places"][0]["gpus"] == list(held)


def test_what_another_placement_holds_is_a_reason_and_no_fault() -> None:
    world = World().with_nodes("gpu-a", "gpu-b").profile("full", gpus_per_node=8)
    world = world.placement("chat", "full").placement("talk", "full")
    found = of(world.launch("talk-0", on="gpu-a"), "chat")
    assert (found["gpu-a"].why, found["gpu-a"].broken) == ("has 0 free GPUs of 8", False)
    assert found["gpu-b"].shard is not None
    assert made(world).homeless == {}


def test_over_several_nodes_each_is_the_worker_of_another() -> None:
    found = of(two_nodes(), "wide")
    assert {node: spec(trial)["rank"] for node, trial in found.items()} == dict.fromkeys(found, 1)
    leaders = {node: spec(trial)["places"][0]["node"] for node, trial in found.items()}
    assert leaders == {"gpu-a": "gpu-c", "gpu-b": "gpu-a", "gpu-c": "gpu-b"}
    assert spec(found["gpu-a"])["network"]["leader"]["host"] == "10.0.0.3"


def test_a_placement_that_has_too_few_nodes_says_so() -> None:
    world = two_nodes().edit_node("gpu-a", state="cordoned").silent("gpu-b")
    found = made(world)
    assert found.homeless["wide"].startswith("1 of 3 nodes fit")
    whys = {trial.node: (trial.why, trial.broken) for trial in found.each}
    assert whys["gpu-a"] == ("cordoned", False)
    assert whys["gpu-b"] == ("unreachable", False)
    assert whys["gpu-c"] == ("is 1 of 1 alike, 2 are needed", False)


def test_what_cannot_be_built_is_a_fault() -> None:
    world = World().node("gpu-a").profile("p").placement("chat", "p")
    world = world.edit("p", bootstrap="fabric")
    (trial,) = made(world).each
    assert (trial.shard, trial.broken) == (None, True)
    assert "the placement names no fabric" in trial.why


def test_a_lease_or_a_hold_of_another_forbids_no_question() -> None:
    world = World().node("gpu-a").profile("p").placement("chat", "p")
    other = Lease(world.desired.fleet.id, "another", 7, remaining_s=50.0)
    world = world.answers_with("gpu-a", lease=other, hold=NodeHold("ada", "a fan"))
    assert of(world, "chat")["gpu-a"].shard is not None


def test_it_depends_on_nothing_but_what_is_wanted_and_seen() -> None:
    world = two_nodes().launch("wide-0", on=("gpu-a", "gpu-b"))
    again = replace(world, nodes=dict(reversed(world.nodes.items())))
    assert made(world) == made(again)
