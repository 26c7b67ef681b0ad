"""Which replicas are wanted, what each of them shows, and renames."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from reconciler.core import observed as seen
from reconciler.core.model import GpuInventory
from reconciler.core.verdict import Verdict
from tests.core.ask_diff import judged, launch, replica, unwanted, verdict, wanted
from tests.core.build_world import World

FLEET = (
    World()
    .with_nodes("gpu-a", "gpu-b", "gpu-c", "gpu-d")
    .profile("llama", args=("--ctx", "4096"))
    .placement("chat", "llama", replicas=3)
)
NEW = ("--ctx", "8192")


def running(*states: str) -> World:
    world = FLEET.edit_placement("chat", replicas=len(states))
    for ordinal, state in enumerate(states):
        node = ("gpu-a", "gpu-b", "gpu-c", "gpu-d")[ordinal % 4]
        world = world.launch(f"chat-{ordinal}", on=node, state=state)
    return world


def scaled(world: World, replicas: int) -> World:
    return world.edit_placement("chat", replicas=replicas)


# --- ordinals -------------------------------------------------------------------------------------


def test_a_wanted_replica_without_any_launch_is_missing() -> None:
    assert wanted(FLEET) == ["chat-0", "chat-1", "chat-2"]
    assert replica(FLEET, "chat-1").verdict is Verdict.MISSING


def test_a_replica_whose_launches_were_stopped_on_request_is_missing() -> None:
    assert replica(running("stopped"), "chat-0").verdict is Verdict.MISSING


def test_a_replica_that_crashed_is_exited_not_missing() -> None:
    assert replica(running("crashed"), "chat-0").verdict is Verdict.EXITED


def test_a_replica_keeps_its_id_for_as_long_as_it_is_wanted_and_gaps_are_allowed() -> None:
    world = FLEET.launch("chat-0", on="gpu-a").launch("chat-7", on="gpu-b", state="crashed")
    assert wanted(world) == ["chat-0", "chat-1", "chat-7"]


def test_new_replicas_take_the_lowest_free_ordinal() -> None:
    world = scaled(FLEET.launch("chat-0", on="gpu-a").launch("chat-2", on="gpu-b"), 4)
    assert wanted(world) == ["chat-0", "chat-1", "chat-2", "chat-3"]


def test_a_replica_being_replaced_stop_first_keeps_its_id() -> None:
    world = FLEET.launch("chat-0", on="gpu-a").launch("chat-1", on="gpu-b")
    world = world.launch("chat-7", on="gpu-c", state="stopped")
    assert wanted(world) == ["chat-0", "chat-1", "chat-7"]


# --- too many -------------------------------------------------------------------------------------


def test_without_a_live_launch_leaves_first() -> None:
    assert wanted(scaled(running("crashed", "starting", "ready"), 2)) == ["chat-1", "chat-2"]


def test_not_ready_leaves_before_ready() -> None:
    assert wanted(scaled(running("starting", "ready", "failing", "ready"), 2)) == [
        "chat-1",
        "chat-3",
    ]


def test_stale_and_misplaced_leave_before_the_rest_of_the_ready() -> None:
    world = FLEET.launch("chat-0", on="gpu-a").launch("chat-1", on="gpu-b")
    world = world.edit("llama", args=NEW).launch("chat-2", on="gpu-c").launch("chat-3", on="gpu-d")
    assert wanted(scaled(world, 2)) == ["chat-2", "chat-3"]
    assert wanted(scaled(running("ready", "ready").edit_node("gpu-a", state="draining"), 1)) == [
        "chat-1"
    ]


def test_the_highest_ordinals_leave_last_of_equals() -> None:
    assert wanted(scaled(running("ready", "ready", "ready"), 2)) == ["chat-0", "chat-1"]


def test_unreachable_and_unknown_count_as_wanted_only_after_the_ready_ones() -> None:
    world = running("ready", "ready", "ready", "ready").silent("gpu-a", remembered=True)
    assert wanted(scaled(world, 3)) == ["chat-1", "chat-2", "chat-3"]
    assert verdict(scaled(world, 3), "chat-0-s1") == "unreachable"
    assert wanted(scaled(world, 4)) == ["chat-0", "chat-1", "chat-2", "chat-3"]


def test_unreachable_counts_before_what_is_not_ready() -> None:
    world = running("ready", "starting").silent("gpu-a", remembered=True)
    assert wanted(scaled(world, 1)) == ["chat-0"]


def test_an_ended_replica_that_nobody_wants_is_history_and_not_shown() -> None:
    world = scaled(running("ready", "stopped", "crashed"), 1)
    assert [r.replica for r in judged(world).replicas] == ["chat-0"]


# --- current, kept, last --------------------------------------------------------------------------


def test_no_launch_is_current_while_all_are_of_another_profile() -> None:
    found = replica(scaled(running("ready"), 1).edit("llama", args=NEW), "chat-0")
    assert (found.current, found.kept) == ("", "chat-0-s1")
    assert found.verdict is Verdict.STALE
    assert found.ready


def test_the_replica_shows_the_current_launch_and_is_ready_by_the_kept_one() -> None:
    world = running("ready").edit("llama", args=NEW)
    world = world.launch("chat-0", on="gpu-b", state="starting")
    found = replica(world, "chat-0")
    assert (found.current, found.kept) == ("chat-0-s2", "chat-0-s1")
    assert found.verdict is Verdict.STARTING
    assert found.ready


def test_current_is_the_highest_seq_among_equals() -> None:
    world = running("unhealthy").launch("chat-0", on="gpu-b", state="starting")
    assert replica(world, "chat-0").current == "chat-0-s2"
    assert replica(world, "chat-0").kept == "chat-0-s1"


def test_a_launch_in_a_place_that_is_not_allowed_is_never_current() -> None:
    world = running("ready").edit_node("gpu-a", state="draining")
    assert replica(world, "chat-0").current == ""


def test_a_half_dead_launch_is_never_current() -> None:
    world = FLEET.edit("llama", nodes=2).edit_placement("chat", replicas=1)
    world = world.launch("chat-0", on=("gpu-a", "gpu-b"), ranks={1: "crashed"})
    found = replica(world, "chat-0")
    assert (found.current, found.kept) == ("", "")
    assert found.verdict is Verdict.EXITED


def test_launches_that_stop_leave_the_replica_to_be_placed_elsewhere() -> None:
    found = replica(running("stopping"), "chat-0")
    assert found.verdict is Verdict.STOPPING
    assert (found.current, found.kept) == ("", "")


def test_an_unreachable_successor_is_current_so_that_no_third_launch_is_made() -> None:
    world = running("ready").edit("llama", args=NEW)
    world = world.launch("chat-0", on="gpu-b", state="starting").silent("gpu-b", remembered=True)
    found = replica(world, "chat-0")
    assert found.verdict is Verdict.UNREACHABLE
    assert found.ready
    assert verdict(world, "chat-0-s1") == "stale"


def test_an_unreachable_launch_is_never_hidden_by_a_newer_one_that_crashed() -> None:
    world = running("ready").edit("llama", args=NEW)
    world = world.launch("chat-0", on="gpu-b", state="crashed").silent("gpu-a", remembered=True)
    assert replica(world, "chat-0").verdict is Verdict.UNREACHABLE


def test_launches_come_newest_first() -> None:
    world = running("crashed").launch("chat-0", on="gpu-b", state="crashed")
    world = world.launch("chat-0", on="gpu-c", state="starting")
    assert [j.view.seq for j in replica(world, "chat-0").launches] == [3, 2, 1]


# --- one per node ---------------------------------------------------------------------------------

EACH = FLEET.edit_placement("chat", replicas="per-node")


def pins(world: World) -> dict[str, str]:
    return {r.replica: r.pinned_node for r in judged(world).replicas if r.wanted}


def test_one_per_node_gives_each_node_that_fits_a_replica_in_order_of_name() -> None:
    assert pins(EACH) == dict(
        zip(("chat-0", "chat-1", "chat-2", "chat-3"), sorted(EACH.nodes), strict=True)
    )


def test_the_ordinal_belongs_to_the_node_and_new_nodes_take_the_lowest_free_one() -> None:
    world = EACH.launch("chat-5", on="gpu-b").launch("chat-0", on="gpu-d")
    assert pins(world) == {
        "chat-0": "gpu-d", "chat-1": "gpu-a", "chat-2": "gpu-c", "chat-5": "gpu-b",
    }  # fmt: skip


def test_one_per_node_leaves_draining_lost_and_unfit_nodes_out() -> None:
    world = EACH.edit_node("gpu-a", state="draining").edit_node("gpu-b", state="lost")
    assert set(pins(world.edit_node("gpu-c", pool="other")).values()) == {"gpu-d"}
    assert pins(EACH.edit("llama", gpus_per_node=16)) == {}


def test_a_cordoned_node_keeps_its_replica_and_gets_no_new_one() -> None:
    world = EACH.launch("chat-0", on="gpu-a")
    world = world.edit_node("gpu-a", state="cordoned").edit_node("gpu-b", state="cordoned")
    assert set(pins(world).values()) == {"gpu-a", "gpu-c", "gpu-d"}


def test_a_second_replica_of_a_node_is_not_wanted() -> None:
    world = EACH.launch("chat-0", on="gpu-a").launch("chat-4", on="gpu-a")
    assert unwanted(world) == ["chat-4"]


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (
            lambda w: w.edit_node("gpu-a", state="draining", reason="a fan"),
            "node gpu-a is draining (a fan)",
        ),
        (lambda w: w.depart("gpu-a"), "node gpu-a is no longer in the fleet"),
        (
            lambda w: w.edit_node("gpu-a", pool="other"),
            "node gpu-a is in pool other, the placement asks for h100",
        ),
        (
            lambda w: w.edit_node("gpu-a", gpus=GpuInventory(klass="l4", count=8)).edit(
                "llama", gpu_class="h100-80gb"
            ),
            "node gpu-a is none of placement chat's",
        ),
        (
            lambda w: w.launch("chat-4", on="gpu-a", state="starting"),
            "placement chat has another replica on node gpu-a",
        ),
    ],
)
def test_one_that_its_node_may_not_have_says_what_became_of_the_node(
    edit: Callable[[World], World], why: str
) -> None:
    (gone,) = (r for r in judged(edit(EACH.launch("chat-0", on="gpu-a"))).replicas if not r.wanted)
    assert gone.reason == why


# --- renames --------------------------------------------------------------------------------------


def test_a_renamed_placement_restarts_nothing() -> None:
    world = running("ready", "ready", "starting").rename_placement("chat", "talk")
    made = judged(world)
    assert [(r.replica, r.renamed_from, r.wanted) for r in made.replicas] == [
        ("talk-0", "chat-0", True), ("talk-1", "chat-1", True), ("talk-2", "chat-2", True),
    ]  # fmt: skip
    assert [r.verdict.value for r in made.replicas] == ["matching", "matching", "starting"]


def test_a_renamed_profile_restarts_nothing() -> None:
    world = running("ready").profile("llama2", model="llama", args=("--ctx", "4096"))
    assert verdict(world.edit_placement("chat", profile="llama2")) == "matching"


def test_renames_pair_by_equal_fingerprint_first() -> None:
    world = (
        FLEET.profile("other", model="llama", args=("--other",))
        .placement("a", "llama", replicas=1)
        .placement("b", "other", replicas=1)
        .edit_placement("chat", replicas=0)
        .launch("a-0", on="gpu-a")
        .launch("b-0", on="gpu-b")
        .rename_placement("a", "z")
        .rename_placement("b", "y")
    )
    assert replica(world, "z-0").renamed_from == "a-0"
    assert replica(world, "y-0").renamed_from == "b-0"


def test_then_by_same_model_and_pool_in_order_of_ordinal() -> None:
    world = running("ready", "ready").rename_placement("chat", "talk").edit("llama", args=NEW)
    assert replica(world, "talk-0").renamed_from == "chat-0"
    assert replica(world, "talk-1").renamed_from == "chat-1"
    assert replica(world, "talk-1").verdict is not Verdict.MISSING


def test_another_model_is_no_rename() -> None:
    world = running("ready").profile("qwen", args=NEW).placement("talk", "qwen", replicas=1)
    world = world.remove_placement("chat")
    assert replica(world, "talk-0").verdict is Verdict.MISSING
    assert unwanted(world) == ["chat-0"]


def test_same_model_in_another_pool_is_no_rename_unless_the_fingerprint_is_equal() -> None:
    world = running("ready").rename_placement("chat", "talk").edit_placement("talk", pool="l40s")
    assert replica(world, "talk-0").verdict is Verdict.MISPLACED
    assert replica(world.edit("llama", args=NEW), "talk-0").verdict is Verdict.MISSING


def test_what_stops_or_has_ended_or_is_unknown_is_not_renamed() -> None:
    world = running("stopping", "crashed").launch("chat-2", on="gpu-c", record={"fingerprint": ""})
    world = scaled(world, 3).rename_placement("chat", "talk")
    assert [replica(world, f"talk-{n}").renamed_from for n in range(3)] == ["", "", ""]
    assert verdict(world, "chat-2-s1") == "unknown"


def test_a_replica_out_of_sight_is_renamed_too_so_that_it_is_not_started_twice() -> None:
    world = running("ready").silent("gpu-a", remembered=True).rename_placement("chat", "talk")
    assert replica(world, "talk-0").verdict is Verdict.UNREACHABLE


def test_one_replica_less_here_and_one_more_there_is_a_rename() -> None:
    world = running("ready", "ready").placement("batch", "llama", replicas=1)
    world = scaled(world, 1)
    assert replica(world, "batch-0").renamed_from == "chat-1"
    assert unwanted(world) == []


def test_a_wanted_replica_that_crashed_has_a_launch_and_takes_over_nothing() -> None:
    world = running("ready").placement("batch", "llama", replicas=1)
    world = world.launch("batch-0", on="gpu-b", state="crashed").remove_placement("chat")
    assert replica(world, "batch-0").renamed_from == ""


def test_a_rename_is_undone_by_the_labels_that_it_writes() -> None:
    labels = seen.Labels(placement="talk", ordinal=0, replica="talk-0")
    world = (
        running("ready").rename_placement("chat", "talk").change_launch("chat-0-s1", labels=labels)
    )
    found = replica(world, "talk-0")
    assert found.renamed_from == ""
    assert found.verdict is Verdict.MATCHING


def test_one_per_node_renames_stay_on_their_nodes() -> None:
    world = EACH.launch("chat-0", on="gpu-b").launch("chat-1", on="gpu-a")
    world = world.rename_placement("chat", "talk")
    found = {r.renamed_from: r.pinned_node for r in judged(world).replicas if r.renamed_from}
    assert found == {"chat-0": "gpu-b", "chat-1": "gpu-a"}


def test_a_renamed_node_document_restarts_nothing() -> None:
    world = running("ready")
    node = dataclasses.replace(world.nodes["gpu-a"], name="new-a")
    world = dataclasses.replace(world, nodes={**world.nodes, "new-a": node}).depart("gpu-a")
    world = world.answers_with(
        "new-a",
        machine_id="machine-gpu-a",
        boot_id="boot-gpu-a",
        shards=tuple(world.launches[0].shards.values()),
    )
    found = launch(world, "chat-0-s1")
    assert found.verdict is Verdict.MATCHING
    assert [p.node for p in found.view.places] == ["new-a"]
    assert set(found.view.shards) == {0}, "what both documents show is counted once"
    assert launch(world.silent("gpu-a"), "chat-0-s1").verdict is Verdict.MATCHING


# --- what cannot be seen --------------------------------------------------------------------------


def test_a_cold_start_with_a_silent_node_blocks_whatever_may_live_there() -> None:
    world = running("ready", "ready", "ready").silent("gpu-b")
    found = replica(world, "chat-1")
    assert found.verdict is Verdict.UNREACHABLE
    assert found.blocked == "perhaps on gpu-b"
    assert replica(world, "chat-0").blocked == ""


@pytest.mark.parametrize("state", ["crashed", "stopped", "stopping"])
def test_what_is_seen_ended_may_still_live_out_of_sight(state: str) -> None:
    world = running(state).silent("gpu-b")
    assert replica(world, "chat-0").blocked == "perhaps on gpu-b"


def test_a_node_that_the_placement_could_not_use_blocks_nothing() -> None:
    world = FLEET.node("l40s-a", pool="l40s").silent("l40s-a")
    assert replica(world, "chat-0").blocked == ""
    pinned = FLEET.edit_placement("chat", nodes=("gpu-a",)).silent("gpu-b")
    assert replica(pinned, "chat-0").blocked == ""


@pytest.mark.parametrize("state", ["cordoned", "draining"])
def test_a_node_that_gets_nothing_new_may_still_run_something_old(state: str) -> None:
    world = FLEET.edit_node("gpu-b", state=state).silent("gpu-b")
    assert replica(world, "chat-0").blocked == "perhaps on gpu-b"


def test_a_lost_node_blocks_nothing() -> None:
    world = FLEET.edit_node("gpu-b", state="lost")
    assert replica(world, "chat-0").verdict is Verdict.MISSING


def test_a_last_look_says_what_a_silent_node_holds_and_nothing_else_is_blocked() -> None:
    world = running("ready", "ready").silent("gpu-b", remembered=True)
    world = scaled(world, 3)
    assert replica(world, "chat-1").verdict is Verdict.UNREACHABLE
    assert launch(world, "chat-1-s1").view.places[0].node == "gpu-b"
    assert replica(world, "chat-2").verdict is Verdict.MISSING
    assert replica(world, "chat-2").blocked == ""


def test_one_per_node_is_blocked_by_its_own_node_alone() -> None:
    world = EACH.silent("gpu-b")
    blocked = {r.pinned_node for r in judged(world).replicas if r.blocked}
    assert blocked == {"gpu-b"}


def test_a_suspended_replica_is_not_blocked_since_nothing_is_to_be_started() -> None:
    world = FLEET.edit_placement("chat", suspend=True).silent("gpu-b")
    assert replica(world, "chat-0").verdict is Verdict.SUSPENDED
