"""Reasons name the edit that a person made; counts are of replicas, not of launches."""

from __future__ import annotations

from reconciler.core.changes import Reason
from reconciler.core.observed import NodeHold
from tests.core.ask_diff import replica, unwanted
from tests.core.ask_plan import change, chat, hold, planned, waits
from tests.core.build_world import World


def spare(world: World) -> World:
    """A second model's placement, so that the fleet is not emptied."""
    return world.profile("qwen", gpus_per_node=1).placement("other", "qwen", replicas=1)


def test_a_replica_of_a_removed_placement_says_that_git_has_it_no_more() -> None:
    world = spare(chat(2)).remove_placement("chat")
    assert unwanted(world) == ["chat-0", "chat-1"]
    assert replica(world, "chat-0").reason == "placement chat is not in git (any more)"


def test_a_replica_too_many_says_how_many_are_left() -> None:
    assert replica(chat(3).edit_placement("chat", replicas=1), "chat-2").reason == (
        "placement chat has 1 replica now"
    )


def test_an_edited_profile_says_so_and_shows_its_fields_once() -> None:
    made = change(chat(2).edit("llama", args=("--x",)), "chat-0")
    assert made.reason == "goes first (canary): the profile was edited"
    assert made.changes


def test_what_a_guard_holds_is_counted_as_the_change_that_it_is() -> None:
    made = planned(chat(10, nodes=5).edit_placement("chat", replicas=2))
    assert Reason.BLAST_RADIUS in waits(made).values()
    assert (made.summary.stop, made.summary.held) == (8, 0)


def test_a_renamed_replica_is_one_change_and_its_ended_launch_follows_without_a_line() -> None:
    world = chat(1).launch("chat-0", on="gpu-b", state="stopped", seq=0)
    made = planned(world.rename_placement("chat", "talk"))
    assert [c.address for c in made.changes] == ["talk-0"]
    assert made.summary.relabel == 1
    assert [step.kind for step in made.repairs] == ["relabel"]


def test_who_waits_for_its_turn_names_whom_it_waits_for() -> None:
    made = planned(chat(4).edit_placement("chat", restart="please"))
    said = {c.waits for c in made.changes if c.waits_for is Reason.MAX_PARALLEL}
    assert said == {"waits for chat-0: at most 1 at a time (max_parallel 10%)"}


def test_a_node_that_a_person_holds_says_for_how_long() -> None:
    world = chat(2).answers_with("gpu-a", hold=NodeHold("kim", "a fan", 5400.0))
    assert hold(planned(world), "node gpu-a").message == (
        "gpu-a: held by kim (a fan) for another 90 min"
    )
