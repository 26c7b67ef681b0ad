"""Profiles that fail: rejected, effective and canary, from the nodes' records alone."""

from __future__ import annotations

import dataclasses

import pytest

from reconciler.core import observed as seen
from reconciler.core.verdict import Effective, Verdict
from tests.core.ask_diff import judged, replica, verdict
from tests.core.build_world import World

FLEET = (
    World()
    .with_nodes("gpu-a", "gpu-b", "gpu-c", "gpu-d")
    .profile("llama", args=("--ctx", "1"))
    .profile("old", model="llama", args=("--ctx", "1"))
    .placement("chat", "llama", replicas=3)
)
SERVING = (
    FLEET.launch("chat-0", on="gpu-a").launch("chat-1", on="gpu-b").launch("chat-2", on="gpu-c")
)
OLD = FLEET.fingerprint("chat")
EDITED = SERVING.edit("llama", args=("--ctx", "2"))
NEW = EDITED.fingerprint("chat")
BAD_FLAG = seen.ShardExit(kind=seen.ExitKind.EXITED, code=2, age_s=100.0)


def effective(world: World, name: str) -> Effective:
    found = replica(world, name).effective
    assert found is not None
    return found


def prints(world: World) -> list[str]:
    names = [r.replica for r in judged(world).replicas if r.wanted]
    return ["new" if effective(world, n).fingerprint == NEW else "old" for n in names]


def canaries(world: World) -> list[str]:
    return [
        r.replica for r in judged(world).replicas if r.wanted and effective(world, r.replica).canary
    ]


def crash(world: World, name: str, on: str, times: int = 1, **over: object) -> World:
    for _ in range(times):
        world = world.launch(name, on=on, state="crashed", **over)  # type: ignore[arg-type]
    return world


# --- today's --------------------------------------------------------------------------------------


def test_the_effective_profile_is_todays() -> None:
    assert effective(SERVING, "chat-0") == Effective(
        SERVING.desired.resolved(SERVING.placements["chat"]), OLD
    )


def test_a_placement_with_nothing_to_lose_needs_no_canary() -> None:
    assert canaries(FLEET) == []
    assert canaries(FLEET.launch("chat-0", on="gpu-a", state="starting")) == []


def test_one_that_failed_without_being_rejected_is_still_todays() -> None:
    world = crash(FLEET, "chat-0", "gpu-a", 2)
    assert effective(world, "chat-0").profile is not None
    assert not effective(world, "chat-0").rejected


# --- canary ---------------------------------------------------------------------------------------


def test_a_new_profile_goes_to_one_replica_and_the_others_keep_the_last_ready() -> None:
    assert prints(EDITED) == ["new", "old", "old"]
    assert canaries(EDITED) == ["chat-0"]
    assert effective(EDITED, "chat-1").waiting
    assert verdict(EDITED, "chat-0-s1") == "stale"
    assert verdict(EDITED, "chat-1-s1") == "matching"


def test_those_that_wait_for_the_canary_read_stale_with_the_field_and_keep_running() -> None:
    world = EDITED
    waiting = [r for r in judged(world).replicas if r.effective and r.effective.waiting]
    assert waiting
    for r in waiting:
        assert r.verdict is Verdict.STALE
        assert "edited" in r.reason
        (live,) = r.launches
        assert live.verdict is Verdict.MATCHING, (
            "acting goes by the launch: it is as wanted for now"
        )
        assert [c.path for c in live.changes] != []


def test_the_canary_is_the_one_with_least_to_lose() -> None:
    world = SERVING.change_launch("chat-1-s1", fresh=False).edit("llama", args=("--ctx", "2"))
    assert canaries(world) == ["chat-1"]


def test_the_canary_stays_the_one_that_has_begun() -> None:
    world = EDITED.launch("chat-2", on="gpu-d", state="starting")
    assert canaries(world) == ["chat-2"]
    assert canaries(crash(EDITED, "chat-2", "gpu-d")) == ["chat-2"]


def test_what_cannot_be_seen_is_no_canary() -> None:
    world = EDITED.silent("gpu-a", remembered=True)
    assert canaries(world) == ["chat-1"]


def test_a_replica_without_a_place_is_no_canary_for_which_all_others_would_wait() -> None:
    full = (
        World()
        .with_nodes("gpu-a", "gpu-b", gpus=1)
        .profile("llama", args=("--ctx", "1"), gpus_per_node=1)
        .placement("chat", "llama", replicas=3)
        .launch("chat-1", on="gpu-a")
        .launch("chat-2", on="gpu-b")
        .edit("llama", args=("--ctx", "2"))
    )
    assert canaries(full) == ["chat-1"]
    assert canaries(full.node("gpu-c", gpus=1)) == ["chat-0"]
    crashed = crash(full, "chat-0", "gpu-a")
    assert canaries(crashed) == ["chat-1"], "what has tried and lost its place is none either"


def test_a_replica_of_its_own_node_has_room_only_there() -> None:
    def fleet(gpus: int) -> World:
        return (
            World()
            .node("gpu-a", gpus=1)
            .node("gpu-b", gpus=gpus)
            .profile("llama", args=("--ctx", "1"), gpus_per_node=1)
            .profile("other", gpus_per_node=1)
            .placement("chat", "llama", replicas="per-node")
            .placement("rest", "other")
            .launch("chat-0", on="gpu-a")
            .launch("chat-1", on="gpu-b", state="rebooted")
            .launch("rest-0", on="gpu-b")
            .edit("llama", args=("--ctx", "2"))
        )

    assert canaries(fleet(gpus=1)) == ["chat-0"]
    assert canaries(fleet(gpus=2)) == ["chat-1"]


def test_the_one_that_was_stopped_to_make_way_stays_the_canary() -> None:
    """Else the room that it made would go to another one, which would then be the canary."""
    world = SERVING.forget_launch("chat-0-s1").forget_launch("chat-1-s1")
    for state in ("stopping", "stopped"):
        made = world.launch("chat-1", on="gpu-b", state=state).edit("llama", args=("--ctx", "2"))
        assert canaries(made) == ["chat-1"]


def held(world: World, *nodes: str, launch: str = "") -> World:
    for name in nodes:
        world = world.answers_with(name, hold=seen.NodeHold(who="Kim", launch=launch))
    return world


def test_a_canary_that_fell_silent_hands_on_and_takes_back_nothing_when_it_returns() -> None:
    begun = EDITED.launch("chat-0", on="gpu-d", state="starting")
    silent = begun.silent("gpu-d", remembered=True)
    assert canaries(begun) == ["chat-0"]
    assert canaries(silent) == ["chat-1"]
    both = begun.launch("chat-1", on="gpu-c", state="starting")
    assert canaries(both) == ["chat-0"], "one at a time"
    assert prints(both) == ["new", "new", "old"], "what has begun ends what it has begun"
    assert verdict(both, "chat-1-s2") == "starting"


def test_of_two_that_have_begun_only_the_canary_tries_again() -> None:
    both = EDITED.launch("chat-0", on="gpu-d", state="starting")
    failed = crash(both, "chat-1", "gpu-c")
    assert prints(failed) == ["new", "old", "old"]
    moved = both.launch("chat-1", on="gpu-c", state="starting")
    elsewhere = moved.edit_node("gpu-c", state="draining")
    assert prints(elsewhere) == ["new", "old", "old"], "it would have to start once more"
    asked = moved.edit_placement("chat", restart="please")
    assert prints(asked) == ["new", "old", "old"]


def test_a_replica_that_a_person_holds_is_no_canary_for_which_all_others_would_wait() -> None:
    assert canaries(held(EDITED, "gpu-a")) == ["chat-1"]
    assert canaries(held(EDITED, "gpu-a", launch="chat-0-s1")) == ["chat-1"]
    assert canaries(held(EDITED, "gpu-a", "gpu-b", "gpu-c")) == ["chat-0"]
    over = EDITED.answers_with("gpu-a", hold=seen.NodeHold(who="Kim", remaining_s=0.0))
    assert canaries(over) == ["chat-0"]


def test_a_canary_in_sight_on_a_held_node_stays_the_canary() -> None:
    begun = EDITED.launch("chat-0", on="gpu-d", state="starting")
    assert canaries(held(begun, "gpu-a", "gpu-d")) == ["chat-0"]


def test_a_canary_in_sight_stays_the_canary_while_its_old_launch_is_not() -> None:
    begun = EDITED.launch("chat-0", on="gpu-d", state="starting")
    assert canaries(begun.silent("gpu-a", remembered=True)) == ["chat-0"]


def test_what_only_loads_an_older_profile_moves_no_canary() -> None:
    """It comes and goes with the choice: the two would take turns, and never get anywhere."""
    fleet = (
        World()
        .with_nodes("gpu-a", "gpu-b", gpus=2)
        .profile("llama", args=("--ctx", "1"), gpus_per_node=1)
        .profile("old", model="llama", args=("--ctx", "1"), gpus_per_node=1)
        .placement("chat", "llama", replicas=2)
        .launch("chat-0", on="gpu-a")
        .launch("chat-1", on="gpu-b")
        .edit("llama", args=("--ctx", "2"), nodes=2)
    )
    assert canaries(fleet) == ["chat-0"]
    loading = fleet.launch("chat-1", on="gpu-b", state="starting", profile="old")
    assert canaries(loading) == ["chat-0"]
    serving = fleet.launch("chat-1", on="gpu-b", profile="old")
    assert canaries(serving) == ["chat-1"]


def test_another_reconcilers_lease_moves_no_canary() -> None:
    """Two reconcilers have to choose the same one."""
    lease = seen.Lease(FLEET.fleet.id, owner="other", epoch=3, remaining_s=50.0)
    assert canaries(EDITED.answers_with("gpu-a", lease=lease)) == ["chat-0"]


def test_a_replica_that_has_no_place_but_a_cordoned_one_is_no_canary() -> None:
    full = EDITED.edit_node("gpu-a", state="cordoned").edit("llama", gpus_per_node=8)
    full = full.edit_node("gpu-d", state="cordoned")
    assert canaries(full) == ["chat-1"]
    assert canaries(full.edit_node("gpu-d", state="active")) == ["chat-0"]


def test_what_is_perhaps_running_out_of_sight_is_no_canary() -> None:
    """The reconciler has just started, and gpu-a was never seen: chat-0 may be on it."""
    world = EDITED.forget_launch("chat-0-s1").silent("gpu-a")
    assert canaries(world) == ["chat-1"]


def test_one_whose_last_launch_is_stuck_where_its_place_is_is_no_canary() -> None:
    def fleet(state: str) -> World:
        return (
            World()
            .with_nodes("gpu-a", "gpu-b", gpus=1)
            .profile("llama", args=("--ctx", "1"), gpus_per_node=1)
            .placement("chat", "llama", replicas=2)
            .launch("chat-0", on="gpu-a", state=state)
            .launch("chat-1", on="gpu-b")
            .edit("llama", args=("--ctx", "2"))
        )

    assert canaries(fleet("stopping")) == ["chat-0"]
    assert canaries(fleet("stuck")) == ["chat-1"]


def test_the_one_that_was_stopped_to_make_way_comes_before_one_that_has_tried() -> None:
    """Else the one that has tried would wait for the room that the other's fallback then takes."""
    world = crash(SERVING.edit("llama", args=("--ctx", "2")), "chat-0", "gpu-d", seq=7)
    world = world.launch("chat-0", on="gpu-a", seq=8, profile="old")
    assert canaries(world) == ["chat-0"]
    stopped = world.launch("chat-1", on="gpu-b", state="stopped", profile="old")
    stopped = stopped.forget_launch("chat-1-s1")
    assert canaries(stopped) == ["chat-1"]


def test_one_that_serves_makes_no_way_whatever_was_stopped_of_it_before() -> None:
    world = SERVING.launch("chat-0", on="gpu-d", state="stopped").launch(
        "chat-1", on="gpu-d", state="stopped"
    )
    world = world.forget_launch("chat-1-s1").edit("llama", args=("--ctx", "2"))
    assert canaries(world) == ["chat-1"]


def test_a_waiting_replica_that_crashes_restarts_with_the_last_ready() -> None:
    world = EDITED.change_launch(
        "chat-1-s1", alive=False, fresh=False, phase=seen.Phase.ENDED, exit=BAD_FLAG
    )
    world = world.launch("chat-0", on="gpu-d", state="starting")
    found = effective(world, "chat-1")
    assert found.fingerprint == OLD
    assert found.profile is not None
    assert found.profile.profile.args == ("--ctx", "1")


def test_the_rest_follows_when_the_canary_is_ready() -> None:
    world = EDITED.launch("chat-0", on="gpu-d")
    assert prints(world) == ["new", "new", "new"]
    assert canaries(world) == []


def test_the_rest_follows_only_after_ready_for() -> None:
    world = EDITED.edit_placement("chat", rollout={"ready_for_s": 600})
    early = seen.Health(ok=True, age_s=1.0, ready_for_s=30.0)
    late = seen.Health(ok=True, age_s=1.0, ready_for_s=700.0)
    assert prints(world.launch("chat-0", on="gpu-d", health=early)) == ["new", "old", "old"]
    assert prints(world.launch("chat-0", on="gpu-d", health=late)) == ["new", "new", "new"]


def test_where_no_rank_is_asked_the_time_since_its_start_counts() -> None:
    world = EDITED.edit_placement("chat", rollout={"ready_for_s": 600}).launch("chat-0", on="gpu-d")
    young = world.change_launch("chat-0-s2", serves=False, started_age_s=30.0)
    old = world.change_launch("chat-0-s2", serves=False, started_age_s=700.0)
    assert prints(young) == ["new", "old", "old"]
    assert prints(old) == ["new", "new", "new"]


def test_no_replica_is_taken_back_from_a_profile_that_it_has_served_with() -> None:
    world = EDITED.edit_placement("chat", rollout={"ready_for_s": 600})
    world = world.launch("chat-0", on="gpu-d").launch("chat-0", on="gpu-d", state="starting")
    gone = world.change_launch(
        "chat-0-s2", alive=False, phase=seen.Phase.ENDED, exit=BAD_FLAG, fresh=False
    )
    assert prints(gone) == ["new", "old", "old"]


def test_two_that_were_ready_with_it_prove_it_for_good() -> None:
    early = seen.Health(ok=True, age_s=1.0, ready_for_s=3.0)
    world = EDITED.edit_placement("chat", rollout={"ready_for_s": 600})
    world = world.launch("chat-0", on="gpu-d", health=early)
    world = world.launch("chat-1", on="gpu-d", health=early)
    assert prints(world) == ["new", "new", "new"]


def test_a_fix_is_taken_at_once_by_the_replica_that_tried_the_wrong_commit() -> None:
    world = EDITED.launch("chat-1", on="gpu-d", state="starting")
    world = world.change_launch("chat-1-s1", alive=False, phase=seen.Phase.ENDED, exit=BAD_FLAG)
    fixed = world.edit("llama", args=("--ctx", "3"))
    assert canaries(fixed) == ["chat-1"]
    assert verdict(fixed, "chat-1-s2") == "stale"
    assert replica(fixed, "chat-1").launches[0].repair


def test_a_revert_takes_the_canary_back_to_what_was_ready() -> None:
    world = EDITED.launch("chat-0", on="gpu-d", state="starting")
    back = world.edit("llama", args=("--ctx", "1"))
    assert canaries(back) == []
    assert effective(back, "chat-0").fingerprint == OLD


def test_the_others_each_keep_their_own_last_ready_profile() -> None:
    world = EDITED.launch("chat-0", on="gpu-a").forget_launch("chat-0-s1")
    third = world.edit("llama", args=("--ctx", "3"))
    assert canaries(third) == ["chat-0"]
    third = third.launch("chat-2", on="gpu-d", state="starting")
    assert canaries(third) == ["chat-2"]
    assert effective(third, "chat-0").fingerprint == NEW
    assert effective(third, "chat-1").fingerprint == OLD


# --- rejected -------------------------------------------------------------------------------------


def test_three_failed_launches_on_two_nodes_reject_a_profile_that_was_never_ready() -> None:
    world = crash(crash(EDITED, "chat-0", "gpu-a", 2), "chat-0", "gpu-d")
    assert prints(world) == ["old", "old", "old"]
    assert effective(world, "chat-0").rejected
    assert "3 launches failed on gpu-a, gpu-d" in effective(world, "chat-0").reason


def test_two_failures_reject_nothing() -> None:
    world = crash(crash(EDITED, "chat-0", "gpu-a"), "chat-0", "gpu-d")
    assert canaries(world) == ["chat-0"]


def test_three_failures_on_one_node_reject_nothing_where_two_fit() -> None:
    assert canaries(crash(EDITED, "chat-0", "gpu-a", 3)) == ["chat-0"]


def test_three_failures_on_the_only_node_that_fits_reject() -> None:
    world = FLEET.edit_placement("chat", replicas=1, nodes=("gpu-a",)).launch("chat-0", on="gpu-a")
    world = crash(world.edit("llama", args=("--ctx", "2")), "chat-0", "gpu-a", 3)
    assert effective(world, "chat-0").rejected


def test_five_failures_on_one_node_reject_where_a_second_that_fits_was_always_full() -> None:
    assert not effective(crash(EDITED, "chat-0", "gpu-d", 4), "chat-0").rejected
    found = effective(crash(EDITED, "chat-0", "gpu-d", 5), "chat-0")
    assert found.rejected
    assert "5 launches failed on gpu-d" in found.reason


def test_failures_whose_records_are_swept_are_counted_by_seq() -> None:
    def kept(*seqs: int) -> World:
        world = EDITED
        for seq in seqs:
            world = world.launch("chat-0", on="gpu-d", state="crashed", seq=seq)
        return world

    # chat-0-s1 serves with the old profile: 2 and 3 are gone from the node, 4 to 6 are there.
    found = effective(kept(4, 5, 6), "chat-0")
    assert found.rejected
    assert "5 launches failed" in found.reason
    assert not effective(kept(3, 4, 5), "chat-0").rejected
    assert not effective(kept(4, 5, 6).retry("chat-0", 3), "chat-0").rejected


def test_a_node_that_cannot_take_it_is_no_second_one_to_wait_for() -> None:
    failed = crash(EDITED, "chat-0", "gpu-d", 3)
    others = ("gpu-a", "gpu-b", "gpu-c")
    assert not effective(failed, "chat-0").rejected
    cordoned = failed
    for name in others:
        cordoned = cordoned.edit_node(name, state="cordoned")
    assert effective(cordoned, "chat-0").rejected
    assert effective(failed.silent(*others, remembered=True), "chat-0").rejected


def test_one_failure_by_its_own_command_rejects_at_once() -> None:
    world = EDITED.edit("llama", engine="vllm")
    tail = ("vllm serve: error: unrecognized arguments: --ctx",)
    world = crash(world, "chat-0", "gpu-d", exit=BAD_FLAG, log_tail=tail)
    found = effective(world, "chat-0")
    assert found.rejected
    assert "unrecognized arguments" in found.reason
    assert found.fingerprint == OLD


def test_failures_of_the_place_never_reject() -> None:
    world = EDITED
    for node in ("gpu-a", "gpu-b", "gpu-c", "gpu-d"):
        world = world.launch("chat-0", on=node, state="preflight")
    assert canaries(world) == ["chat-0"]


@pytest.mark.parametrize("state", ["rebooted", "stopped"])
def test_what_did_not_end_by_itself_never_rejects(state: str) -> None:
    world = EDITED
    for node in ("gpu-a", "gpu-b", "gpu-c", "gpu-d"):
        world = world.launch("chat-0", on=node, state=state, ever_ready=False)
    assert not effective(world, "chat-0").rejected


def test_a_profile_that_was_ready_anywhere_is_never_rejected() -> None:
    world = EDITED.placement("other", "llama", replicas=1).launch("other-0", on="gpu-d")
    world = crash(crash(world, "chat-0", "gpu-a", 2), "chat-0", "gpu-d")
    assert not effective(world, "chat-0").rejected


def test_failures_in_another_placement_reject_nothing_here() -> None:
    world = EDITED.placement("other", "llama", replicas=1)
    world = crash(crash(world, "other-0", "gpu-a", 2), "other-0", "gpu-d")
    assert not effective(world, "chat-0").rejected
    assert effective(world, "other-0").rejected


def test_rejected_with_nothing_to_fall_back_on_starts_nothing() -> None:
    world = crash(crash(FLEET, "chat-0", "gpu-a", 2), "chat-0", "gpu-d")
    found = effective(world, "chat-1")
    assert found.profile is None
    assert found.rejected
    assert "retry" in found.reason


def test_what_is_still_starting_with_a_rejected_profile_may_yet_prove_it() -> None:
    world = crash(crash(FLEET, "chat-0", "gpu-a", 2), "chat-0", "gpu-d")
    world = world.launch("chat-1", on="gpu-b", state="starting")
    assert verdict(world, "chat-1-s1") == "starting"
    assert not effective(world.launch("chat-2", on="gpu-c"), "chat-0").rejected


def test_an_edit_lifts_a_rejection() -> None:
    world = crash(crash(EDITED, "chat-0", "gpu-a", 2), "chat-0", "gpu-d")
    assert canaries(world.edit("llama", args=("--ctx", "3"))) == ["chat-0"]


def test_retry_lifts_a_rejection() -> None:
    world = crash(crash(EDITED, "chat-0", "gpu-a", 2), "chat-0", "gpu-d")
    assert effective(world.retry("chat-0", 3), "chat-0").rejected is False
    assert canaries(world.retry("chat-0", 4)) == ["chat-0"]


def test_a_retry_that_only_one_nodes_lease_knows_counts() -> None:
    world = crash(crash(EDITED, "chat-0", "gpu-a", 2), "chat-0", "gpu-d")
    lease = seen.Lease(fleet=world.fleet.id, retries={"chat-0": 4})
    assert not effective(world.answers_with("gpu-d", lease=lease), "chat-0").rejected
    lower = seen.Lease(fleet=world.fleet.id, retries={"chat-0": 1})
    assert not effective(
        world.answers_with("gpu-a", lease=lower)
        .answers_with("gpu-b", lease=lease)
        .answers_with("gpu-c", lease=lower),
        "chat-0",
    ).rejected, "the highest counts, whichever node says it"
    stranger = seen.Lease(fleet="another", retries={"chat-0": 4})
    assert effective(world.answers_with("gpu-d", lease=stranger), "chat-0").rejected


def test_a_lost_node_is_no_fault_of_the_profile() -> None:
    world = FLEET.edit("llama", nodes=2)
    for other in ("gpu-b", "gpu-c", "gpu-d"):
        world = world.launch("chat-0", on=("gpu-a", other), ranks={0: "crashed", 1: "ready"})
    for node in ("gpu-b", "gpu-c", "gpu-d"):
        world = world.edit_node(node, state="lost")
    assert not effective(world, "chat-0").rejected


def test_a_record_whose_profile_cannot_be_read_is_nothing_to_fall_back_on() -> None:
    world = FLEET.edit_placement("chat", replicas=1)
    world = world.launch("chat-0", on="gpu-a", record={"profile": {"profile": []}})
    world = world.edit("llama", args=("--ctx", "2"))
    assert effective(world, "chat-0").fingerprint == NEW


def test_rejection_does_not_depend_on_which_replica_failed() -> None:
    world = crash(crash(crash(FLEET, "chat-0", "gpu-a"), "chat-1", "gpu-b"), "chat-2", "gpu-c")
    assert effective(world, "chat-0").rejected
    assert replica(world, "chat-0").verdict is Verdict.EXITED


WIDE = (
    World()
    .with_nodes("gpu-a", "gpu-b", "gpu-c")
    .profile("llama", nodes=2, gpus_per_node=1)
    .placement("chat", "llama", replicas=1)
)


def ever_ready(world: World, launch: str) -> bool:
    views = [j.view for r in judged(world).replicas for j in r.launches]
    return next(view.ever_ready for view in views if view.launch == launch)


def test_a_worker_whose_leader_left_no_record_does_not_prove_its_profile() -> None:
    """A rank that serves nothing is ready as soon as it runs."""
    half = WIDE.launch("chat-0", on=("gpu-b", "gpu-a"), state="stopped", absent=(0,))
    half = half.change_launch("chat-0-s1", ever_ready=True)
    assert not ever_ready(half, "chat-0-s1")
    for _ in range(5):
        half = half.launch("chat-0", on=("gpu-b", "gpu-c"), ranks={0: "crashed", 1: "stopped"})
        half = half.change_launch(half.launches[-1].launch, ever_ready=False)
    assert effective(half, "chat-0").rejected


def test_what_was_ready_stays_so_where_its_leader_fell_silent() -> None:
    world = WIDE.launch("chat-0", on=("gpu-b", "gpu-a"))
    assert ever_ready(world.silent("gpu-b", remembered=True), "chat-0-s1")
    young = WIDE.launch("chat-0", on=("gpu-b", "gpu-a"), ranks={0: "starting"})
    assert not ever_ready(young.silent("gpu-b", remembered=True), "chat-0-s1")


def test_where_no_rank_serves_all_of_them_tell_whether_it_was_ready() -> None:
    world = WIDE.launch("chat-0", on=("gpu-b", "gpu-a"), serves=False, ever_ready=True)
    assert ever_ready(world, "chat-0-s1")
    half = WIDE.launch("chat-0", on=("gpu-b", "gpu-a"), serves=False, ever_ready=True, absent=(0,))
    assert not ever_ready(half, "chat-0-s1")


def test_what_never_gets_ready_is_rejected_although_its_workers_were_asked_to_stop_by_then() -> (
    None
):
    """The stop follows the timeout, and the ages of two nodes do not tell which was first."""
    late = seen.ShardExit(kind=seen.ExitKind.TIMEOUT, age_s=60.0)
    stopped = seen.ShardExit(kind=seen.ExitKind.STOPPED, age_s=58.0)
    world = WIDE
    for on in (("gpu-a", "gpu-b"), ("gpu-b", "gpu-c"), ("gpu-c", "gpu-a")):
        world = world.launch("chat-0", on=on, state="crashed", exit=late)
        built = world.launches[-1]
        shards = {
            **built.shards,
            on[1]: dataclasses.replace(
                built.shards[on[1]], exit=stopped, stop_asked=True, stop_age_s=60.6, ever_ready=True
            ),
        }
        made = dataclasses.replace(built, shards=shards)
        world = dataclasses.replace(world, launches=(*world.launches[:-1], made))
    found = effective(world, "chat-0")
    assert found.rejected
    assert "not ready within its start timeout" in found.reason
