"""Every row of the verdict table, in its order; what each test proves is its name."""

from __future__ import annotations

import dataclasses

import pytest

from reconciler.core import observed as seen
from reconciler.core.verdict import Verdict
from reconciler.core.verdicts import TABLE
from tests.core.ask_diff import judged, launch, replica, verdict
from tests.core.build_world import World

FLEET = (
    World()
    .with_nodes("gpu-a", "gpu-b", "gpu-c")
    .profile("llama", args=("--ctx", "4096"))
    .placement("chat", "llama", replicas=1)
)
PAIR = FLEET.edit("llama", nodes=2)
BOTH = ("gpu-a", "gpu-b")


def one(state: str, **over: object) -> World:
    return FLEET.launch("chat-0", on="gpu-a", state=state, **over)  # type: ignore[arg-type]


def test_the_table_is_in_the_order_of_the_design() -> None:
    assert [v.value for v, _ in TABLE] == [
        "unreachable", "stopping", "unknown", "surplus", "suspended", "exited", "timed out",
        "stale", "misplaced", "starting", "unhealthy", "matching",
    ]  # fmt: skip


# --- unreachable ----------------------------------------------------------------------------------


def test_a_launch_whose_node_does_not_answer_is_unreachable() -> None:
    world = one("ready").silent("gpu-a", remembered=True)
    assert verdict(world) == "unreachable"
    assert "gpu-a" in launch(world, "chat-0-s1").reason


@pytest.mark.parametrize("error", list(seen.LookError))
def test_every_kind_of_silence_is_unreachable(error: seen.LookError) -> None:
    world = PAIR.launch("chat-0", on=BOTH).silent("gpu-b", error=error)
    assert verdict(world) == "unreachable"
    assert error.value in launch(world, "chat-0-s1").reason


def test_one_rank_in_sight_tells_of_the_silent_one() -> None:
    world = PAIR.launch("chat-0", on=BOTH).silent("gpu-b")
    found = launch(world, "chat-0-s1")
    assert found.verdict is Verdict.UNREACHABLE
    assert [p.node for p in found.view.places] == ["gpu-a", "gpu-b"]
    assert found.view.silent_nodes == ("gpu-b",)


def test_a_crash_in_sight_does_not_make_the_silent_rank_stopped() -> None:
    world = PAIR.launch("chat-0", on=BOTH, ranks={0: "crashed"}).silent("gpu-b")
    assert verdict(world) == "unreachable"


def test_a_changed_machine_id_is_unreachable_not_gone() -> None:
    world = PAIR.launch("chat-0", on=BOTH, absent=(1,)).answers_with("gpu-b", machine_id="other")
    assert verdict(world) == "unreachable"
    assert "another machine" in launch(world, "chat-0-s1").reason


def test_launches_that_cannot_be_listed_are_unreachable_not_gone() -> None:
    world = PAIR.launch("chat-0", on=BOTH, absent=(1,)).answers_with(
        "gpu-b", shards_error="Input/output error"
    )
    assert verdict(world) == "unreachable"


def test_two_documents_with_one_machine_id_hold_what_runs_there() -> None:
    world = one("ready").answers_with("gpu-b", machine_id="machine-gpu-a")
    assert verdict(world) == "unreachable"
    assert "gpu-a and gpu-b are one machine" in launch(world, "chat-0-s1").reason


def test_a_departed_node_that_does_not_answer_is_still_unreachable() -> None:
    world = PAIR.launch("chat-0", on=BOTH).depart("gpu-b").silent("gpu-b")
    assert verdict(world) == "unreachable"


def test_a_lost_node_is_not_unreachable() -> None:
    world = PAIR.launch("chat-0", on=BOTH).edit_node("gpu-b", state="lost")
    assert verdict(world) == "exited"
    assert "gpu-b is lost" in launch(world, "chat-0-s1").reason


def test_a_stop_that_was_asked_does_not_hide_that_a_rank_is_out_of_sight() -> None:
    world = PAIR.launch("chat-0", on=BOTH, state="stopping").silent("gpu-b")
    assert verdict(world) == "unreachable"


def test_what_had_ended_at_the_last_look_stays_ended_out_of_sight() -> None:
    world = one("stopped").silent("gpu-a", remembered=True)
    assert verdict(world) == "exited"


# --- stopping -------------------------------------------------------------------------------------


def test_a_stop_that_was_asked_and_something_alive_is_stopping() -> None:
    assert verdict(one("stopping")) == "stopping"


def test_stopping_longer_than_its_grace_is_stuck_with_its_pids() -> None:
    found = launch(one("stuck"), "chat-0-s1")
    assert found.verdict is Verdict.STOPPING
    assert found.stuck
    assert "4242" in found.reason
    assert not launch(one("stopping"), "chat-0-s1").stuck


def test_draining_counts_before_the_grace() -> None:
    world = FLEET.edit("llama", drain_s=3600).launch("chat-0", on="gpu-a", state="stuck")
    assert not launch(world, "chat-0-s1").stuck


def test_one_rank_asked_to_stop_makes_the_launch_stopping() -> None:
    world = PAIR.launch("chat-0", on=BOTH, ranks={1: "stopping"})
    assert verdict(world) == "stopping"
    assert not launch(world, "chat-0-s1").view.ready


def test_stopping_comes_before_unknown() -> None:
    assert verdict(one("stopping", record={"fingerprint": ""})) == "stopping"


# --- unknown --------------------------------------------------------------------------------------

DAMAGE = {
    "damaged": {"record_error": "spec.json: not JSON"},
    "absent": {"record_error": "absent"},
    "without a fingerprint": {"record": {"fingerprint": ""}},
    "of a newer method": {"record": {"fingerprint": "p2:00"}},
    "of a newer major format": {"record": {"format": "2.0"}},
    "of no readable format": {"record": {"format": "x"}},
}


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("state", ["ready", "starting", "unhealthy", "overdue", "unsupervised"])
def test_alive_with_such_a_record_is_unknown_whatever_its_state(what: str, state: str) -> None:
    world = one(state, **DAMAGE[what])
    found = launch(world, "chat-0-s1")
    assert found.verdict is Verdict.UNKNOWN
    assert "reconcile stop chat-0-s1" in found.reason


def test_a_newer_minor_format_is_readable() -> None:
    assert verdict(one("ready", record={"format": "1.7"})) == "matching"


def test_one_damaged_rank_makes_the_launch_unknown() -> None:
    world = PAIR.launch("chat-0", on=BOTH)
    built = world.launches[0]
    shard = built.shards["gpu-b"]
    damaged = dataclasses.replace(shard, record=None, record_error="truncated")
    broken = dataclasses.replace(built, shards={**built.shards, "gpu-b": damaged})
    world = dataclasses.replace(world, launches=(broken,))
    assert verdict(world) == "unknown"


def test_an_unknown_launch_of_a_wanted_replica_keeps_it_from_being_started_again() -> None:
    for damage in DAMAGE.values():
        world = one("ready", **damage)
        assert replica(world, "chat-0").verdict is Verdict.UNKNOWN


def test_the_replica_of_a_damaged_record_is_told_by_labels_then_by_the_launchs_name() -> None:
    world = one("ready", record_error="damaged", name="chat-0-k3f9a", labels=seen.Labels())
    assert replica(world, "chat-0").verdict is Verdict.UNKNOWN


def test_a_launch_that_no_replica_can_be_named_for_is_a_stray() -> None:
    world = one("ready", record_error="absent", name="whatever", labels=seen.Labels())
    [stray] = judged(world).strays
    assert stray.verdict is Verdict.UNKNOWN
    assert replica(world, "chat-0").verdict is Verdict.MISSING


def test_a_damaged_leftover_of_which_nothing_runs_neither_holds_nor_counts() -> None:
    world = one("crashed", record_error="damaged")
    assert verdict(world) == "unknown"
    assert replica(world, "chat-0").verdict is Verdict.MISSING


def test_an_unknown_launch_that_nobody_wants_stays_unknown() -> None:
    world = one("ready", record={"fingerprint": ""}).remove_placement("chat")
    assert verdict(world) == "unknown"
    assert not launch(world, "chat-0-s1").not_wanted


def test_an_alive_copy_on_a_node_that_its_record_does_not_name_is_unknown() -> None:
    world = one("ready")
    built = world.launches[0]
    moved = dataclasses.replace(built, shards={"gpu-b": built.shards["gpu-a"]})
    world = dataclasses.replace(world, launches=(moved,))
    assert verdict(world) == "unknown"


def test_a_dead_copy_of_a_record_on_another_node_proves_nothing() -> None:
    world = one("crashed")
    built = world.launches[0]
    moved = dataclasses.replace(built, shards={"gpu-b": built.shards["gpu-a"]})
    world = dataclasses.replace(world, launches=(moved,)).silent("gpu-a")
    assert verdict(world) == "unreachable"


# --- surplus --------------------------------------------------------------------------------------


def test_a_replica_that_nobody_wants_is_surplus_of_the_first_kind() -> None:
    found = launch(one("ready").remove_placement("chat"), "chat-0-s1")
    assert found.verdict is Verdict.SURPLUS
    assert found.not_wanted


def test_once_the_current_launch_is_ready_every_other_live_one_is_surplus() -> None:
    world = one("ready").edit("llama", args=("--ctx", "8192")).launch("chat-0", on="gpu-b")
    assert verdict(world, "chat-0-s1") == "surplus"
    assert verdict(world, "chat-0-s2") == "matching"
    assert launch(world, "chat-0-s1").reason == "chat-0-s2 has taken over"
    assert not launch(world, "chat-0-s1").not_wanted


def test_until_then_the_current_and_the_last_ready_one_are_kept_and_the_rest_is_surplus() -> None:
    world = (
        one("ready")
        .edit("llama", args=("--ctx", "1"))
        .launch("chat-0", on="gpu-b", state="starting")
        .edit("llama", args=("--ctx", "2"))
        .launch("chat-0", on="gpu-c", state="starting")
    )
    found = replica(world, "chat-0")
    assert (found.current, found.kept) == ("chat-0-s3", "chat-0-s1")
    assert verdict(world, "chat-0-s1") == "stale"
    assert verdict(world, "chat-0-s2") == "surplus"
    assert launch(world, "chat-0-s2").repair


def test_while_none_is_of_todays_profile_the_ready_one_is_kept_and_the_rest_is_surplus() -> None:
    """Else the ready one would be stopped first, for a successor whose place the other holds."""
    world = one("ready").launch("chat-0", on="gpu-b", state="starting")
    world = world.edit("llama", args=("--edited",))
    assert verdict(world, "chat-0-s1") == "stale"
    assert verdict(world, "chat-0-s2") == "surplus"


def test_what_has_ended_is_never_surplus() -> None:
    world = one("crashed").launch("chat-0", on="gpu-b")
    assert verdict(world, "chat-0-s1") == "exited"


# --- suspended ------------------------------------------------------------------------------------


def test_a_live_launch_of_a_suspended_placement_is_suspended() -> None:
    world = one("ready").edit_placement("chat", suspend=True)
    assert verdict(world) == "suspended"
    assert replica(world, "chat-0").verdict is Verdict.SUSPENDED
    assert replica(world, "chat-0").wanted


@pytest.mark.parametrize("state", ["crashed", "stopped"])
def test_an_ended_launch_of_a_suspended_placement_asks_for_nothing(state: str) -> None:
    world = one(state).edit_placement("chat", suspend=True)
    assert verdict(world) == "suspended"
    assert replica(world, "chat-0").verdict is Verdict.SUSPENDED


def test_a_suspended_replica_without_any_launch_is_suspended_not_missing() -> None:
    world = FLEET.edit_placement("chat", suspend=True)
    assert replica(world, "chat-0").verdict is Verdict.SUSPENDED


# --- exited ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("state", "word", "failed"),
    [
        ("crashed", "exited with code 1", True),
        ("timed-out", "start timeout", True),
        ("vanished", "nobody saw how", True),
        ("rebooted", "reboot", False),
        ("preflight", "no such path", False),
        ("stopped", "on request", False),
    ],
)
def test_how_it_ended_decides_whether_it_counts_as_a_failure(
    state: str, word: str, failed: bool
) -> None:
    found = launch(one(state), "chat-0-s1")
    assert found.verdict is Verdict.EXITED
    assert word in found.reason
    assert found.failed is failed
    assert found.repair


def test_another_boot_id_means_exited_by_a_reboot_whatever_the_record_says() -> None:
    found = launch(one("crashed", exit=None, phase=seen.Phase.RUNNING, boot_id="old"), "chat-0-s1")
    assert found.verdict is Verdict.EXITED
    assert "reboot" in found.reason
    assert not found.failed


def test_one_crashed_rank_ends_the_whole_launch() -> None:
    found = launch(PAIR.launch("chat-0", on=BOTH, ranks={1: "crashed"}), "chat-0-s1")
    assert found.verdict is Verdict.EXITED
    assert "rank 1 on gpu-b" in found.reason
    assert found.view.alive, "there is something left to stop"
    assert not found.view.ready


def test_a_rank_whose_node_answers_whole_and_has_no_such_launch_is_dead() -> None:
    found = launch(PAIR.launch("chat-0", on=BOTH, absent=(1,)), "chat-0-s1")
    assert found.verdict is Verdict.EXITED
    assert found.failed, "it had been ready, so the rank had been there"


def test_a_rank_that_was_never_started_is_incomplete_and_no_failure() -> None:
    world = PAIR.launch("chat-0", on=BOTH, state="starting", absent=(1,))
    found = launch(world, "chat-0-s1")
    assert found.verdict is Verdict.EXITED
    assert "incomplete" in found.reason
    assert not found.failed


def test_what_follows_a_stop_that_was_asked_is_no_failure() -> None:
    world = PAIR.launch("chat-0", on=BOTH, ranks={0: "stopped", 1: "crashed"})
    built = world.launches[0]
    late = seen.ShardExit(kind=seen.ExitKind.EXITED, code=1, age_s=65.0)
    after = dataclasses.replace(built.shards["gpu-b"], exit=late)
    shards = {**built.shards, "gpu-b": after}
    world = dataclasses.replace(world, launches=(dataclasses.replace(built, shards=shards),))
    found = launch(world, "chat-0-s1")
    assert found.reason == "stopped on request"
    assert not found.failed


def test_a_stopped_rank_whose_record_is_swept_already_makes_no_failure_of_a_stop() -> None:
    found = launch(PAIR.launch("chat-0", on=BOTH, state="stopped", absent=(1,)), "chat-0-s1")
    assert found.reason == "stopped on request"
    assert not found.failed


def test_a_crash_stays_a_failure_when_the_rest_was_stopped_after_it() -> None:
    world = PAIR.launch("chat-0", on=BOTH, ranks={0: "stopped", 1: "crashed"})
    assert launch(world, "chat-0-s1").failed


def test_a_crash_beside_a_reboot_is_the_reboots_doing() -> None:
    world = PAIR.launch("chat-0", on=BOTH, ranks={0: "rebooted", 1: "crashed"})
    assert not launch(world, "chat-0-s1").failed


def test_a_launch_on_a_node_that_the_fleet_no_longer_knows_has_exited() -> None:
    world = PAIR.launch("chat-0", on=("gpu-a", "gone"), absent=(1,))
    assert verdict(world) == "exited"


# --- timed out ------------------------------------------------------------------------------------


def test_alive_and_never_ready_when_the_start_timeout_is_over_is_timed_out() -> None:
    found = launch(one("overdue"), "chat-0-s1")
    assert found.verdict is Verdict.TIMED_OUT
    assert found.failed
    assert "2000" in found.reason
    assert "1800" in found.reason


def test_its_supervisor_is_given_time_to_record_the_failure_itself() -> None:
    """A stop that came first would read as one on request, and count for nothing."""
    assert verdict(one("overdue", started_age_s=1900.0)) == "starting"
    assert verdict(one("overdue", started_age_s=1906.0)) == "timed out"


def test_one_that_was_ready_once_never_times_out() -> None:
    assert verdict(one("overdue", ever_ready=True)) == "matching"


# --- stale ----------------------------------------------------------------------------------------


def test_another_fingerprint_is_stale_with_the_field_that_changed() -> None:
    found = launch(one("ready").edit("llama", args=("--ctx", "8192")), "chat-0-s1")
    assert found.verdict is Verdict.STALE
    assert [(c.path, c.before, c.after) for c in found.changes] == [
        ("profile.args[1]", "4096", "8192")
    ]
    assert "profile.args[1] 4096 → 8192" in found.reason
    assert not found.repair


def test_stale_and_not_ready_is_replaced_at_once() -> None:
    world = one("starting").edit("llama", args=("--ctx", "8192"))
    assert verdict(world) == "stale"
    assert launch(world, "chat-0-s1").repair


def test_stale_is_told_from_a_record_whose_profile_cannot_be_read() -> None:
    world = one("ready", record={"profile": {"profile": 1}}).edit("llama", args=("--ctx", "8192"))
    found = launch(world, "chat-0-s1")
    assert found.verdict is Verdict.STALE
    assert found.changes == ()


def test_a_new_restart_text_is_stale_where_the_placement_has_one() -> None:
    found = launch(one("ready").edit_placement("chat", restart="2026-02-01"), "chat-0-s1")
    assert found.verdict is Verdict.STALE
    assert [c.path for c in found.changes] == ["placement.restart"]


def test_taking_the_restart_text_away_restarts_nothing() -> None:
    world = FLEET.edit_placement("chat", restart="once").launch("chat-0", on="gpu-a")
    assert verdict(world) == "matching"
    assert verdict(world.edit_placement("chat", restart="")) == "matching"


@pytest.mark.parametrize(
    "edit", [{"start_timeout_s": 9}, {"stop_grace_s": 9}, {"owner": "me"}, {"labels": {"a": "b"}}]
)
def test_an_edit_that_needs_no_restart_is_not_stale(edit: dict[str, object]) -> None:
    assert verdict(one("ready").edit("llama", **edit)) == "matching"


# --- misplaced ------------------------------------------------------------------------------------


def test_a_changed_pool_is_misplaced() -> None:
    found = launch(one("ready").edit_placement("chat", pool="l40s"), "chat-0-s1")
    assert found.verdict is Verdict.MISPLACED
    assert "pool h100" in found.reason


def test_a_selector_that_no_longer_matches_is_misplaced() -> None:
    world = one("ready").edit_placement("chat", selector={"zone": "a"})
    assert verdict(world) == "misplaced"
    assert verdict(world.edit_node("gpu-a", labels={"zone": "a"})) == "matching"


def test_pins_that_no_longer_name_the_node_are_misplaced() -> None:
    assert verdict(one("ready").edit_placement("chat", nodes=("gpu-b",))) == "misplaced"


def test_a_draining_node_is_misplaced_and_a_cordoned_one_is_not() -> None:
    assert verdict(one("ready").edit_node("gpu-a", state="draining")) == "misplaced"
    assert verdict(one("ready").edit_node("gpu-a", state="cordoned")) == "matching"


def test_a_lost_node_that_answers_again_is_misplaced_and_not_stopped_as_dead() -> None:
    world = one("ready").edit_node("gpu-a", state="lost").answers_with("gpu-a")
    found = launch(world, "chat-0-s1")
    assert found.verdict is Verdict.MISPLACED
    assert found.view.ready


def test_a_departed_node_is_misplaced() -> None:
    assert verdict(one("ready").depart("gpu-a")) == "misplaced"


def test_another_fabric_is_misplaced_also_where_the_node_has_both() -> None:
    fleet = (
        World()
        .with_nodes("gpu-a", "gpu-b", fabrics=("ib-a", "ib-b"))
        .profile("llama", nodes=2)
        .placement("chat", "llama", replicas=1, fabric="ib-a")
    )
    world = fleet.launch("chat-0", on=BOTH)
    assert verdict(world) == "matching"
    assert verdict(world.edit_placement("chat", fabric="ib-b")) == "misplaced"
    assert verdict(world.edit_placement("chat", fabric="ib-c")) == "misplaced"


def test_one_rank_out_of_place_misplaces_the_launch() -> None:
    world = PAIR.launch("chat-0", on=BOTH).edit_node("gpu-b", state="draining")
    assert verdict(world) == "misplaced"


# --- starting, unhealthy, matching ----------------------------------------------------------------


def test_alive_and_not_ready_yet_is_starting() -> None:
    assert verdict(one("starting")) == "starting"


def test_failing_without_a_break_for_unhealthy_after_is_unhealthy() -> None:
    world = one("unhealthy")
    assert verdict(world) == "unhealthy"
    assert "HTTP 503" in launch(world, "chat-0-s1").reason
    assert verdict(world.with_fleet(unhealthy_after_s=600)) == "matching"


def test_failing_for_less_is_matching_and_not_ready() -> None:
    found = replica(one("failing"), "chat-0")
    assert found.verdict is Verdict.MATCHING
    assert not found.ready


def test_ready_on_the_effective_profile_in_an_allowed_place_is_matching() -> None:
    found = replica(one("ready"), "chat-0")
    assert found.verdict is Verdict.MATCHING
    assert found.ready


# --- ready ----------------------------------------------------------------------------------------


def test_an_old_health_answer_is_not_ready() -> None:
    assert not replica(one("ready", fresh=False), "chat-0").ready


def test_a_dead_supervisor_is_not_ready_but_nothing_else() -> None:
    found = replica(one("unsupervised"), "chat-0")
    assert not found.ready
    assert found.verdict is Verdict.MATCHING


def test_ready_needs_every_rank_alive() -> None:
    assert replica(PAIR.launch("chat-0", on=BOTH), "chat-0").ready
    assert not replica(PAIR.launch("chat-0", on=BOTH, absent=(1,)), "chat-0").ready


def test_ready_needs_a_fresh_answer_of_every_rank_that_serves() -> None:
    world = PAIR.launch("chat-0", on=BOTH, ranks={1: "failing"}, serves=True)
    assert not replica(world, "chat-0").ready


# --- whose launch it is ---------------------------------------------------------------------------


def test_another_fleets_launch_is_a_stranger_and_has_no_verdict() -> None:
    world = one("ready", record={"fleet": "another"})
    made = judged(world)
    assert dict(made.strangers) == {"gpu-a": ("chat-0-s1",)}
    assert replica(world, "chat-0").launches == ()


def test_labels_say_whose_launch_it_is_before_the_record_does() -> None:
    labels = seen.Labels(placement="chat", ordinal=0, replica="chat-0")
    world = one("ready", record={"replica": "old-3"}, labels=labels)
    assert verdict(world) == "matching"
