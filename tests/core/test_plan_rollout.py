"""Rule 3, surge or stop-first, canary, freeze, manual, suspend, unhealthy, relabel, repairs."""

from __future__ import annotations

import dataclasses

from reconciler.core.changes import AdoptStep, Reason, RelabelStep, StartStep, StopStep, Symbol
from reconciler.core.diff import diff
from reconciler.core.guard import approvable
from reconciler.core.model import (
    AdapterPort,
    Desired,
    Freeze,
    Limit,
    Management,
    NodeFabric,
    Parallelism,
)
from reconciler.core.observed import ApprovedChange, NodeHold, Observed
from reconciler.core.policy import still_stands
from tests.core.ask_plan import (
    approve,
    change,
    chat,
    hold,
    holds,
    lease,
    planned,
    proven,
    started,
    stopped,
    symbols,
    waits,
)
from tests.core.build_world import STATES, World, fingerprint


def wide(world: World) -> World:
    """The fleet's own limit out of the way."""
    return world.with_fleet(max_parallel=Limit(count=100))


# --- surge or stop first -------------------------------------------------------------------------


def test_with_free_gpus_the_successor_starts_first() -> None:
    world = proven(chat(3, gpus=2))
    made = planned(world)
    assert symbols(made)["chat-0"] == "+/-"
    assert started(made) == {"chat-0": ("gpu-b",)}
    assert stopped(made) == []


def test_the_old_launch_is_stopped_when_the_new_one_is_ready_and_not_before() -> None:
    world = proven(chat(3, gpus=2)).launch("chat-0", on="gpu-b", state="starting")
    made = planned(world)
    assert stopped(made) == []
    assert change(world, "chat-0").symbol is Symbol.START_FIRST
    ready = proven(chat(3, gpus=2)).launch("chat-0", on="gpu-b", state="ready")
    assert "chat-0-s1" in stopped(planned(ready))


def test_without_free_gpus_one_replica_is_stopped_first() -> None:
    made = planned(wide(proven(chat(4))))
    assert stopped(made) == ["chat-0-s1"]
    assert waits(made) == {f"chat-{n}": Reason.MAX_UNAVAILABLE for n in (1, 2, 3)}
    assert {c.symbol for c in made.changes} == {Symbol.STOP_FIRST}


def test_a_stop_that_comes_first_carries_what_its_successor_will_be_told() -> None:
    made = planned(wide(proven(chat(4))))
    (stop,) = [step for step in made.steps if isinstance(step, StopStep)]
    (shard,) = stop.check
    (first,) = [c for c in made.changes if c.steps]
    assert shard.spec["fingerprint"] == first.after
    assert (shard.node, tuple(shard.spec["places"][0]["gpus"])) == (
        first.after_seats[0].node,
        first.after_seats[0].gpus,
    )
    assert shard.spec["launch"] == "chat-0-check"


def test_every_change_that_will_come_is_in_the_plan() -> None:
    made = planned(proven(chat(4)))
    assert made.summary.replace == 4


def test_max_unavailable_counts_what_is_down_for_other_reasons() -> None:
    world = chat(4).forget_launch("chat-3-s1").launch("chat-3", on="gpu-b", state="crashed")
    made = planned(wide(proven(world)))
    assert stopped(made) == []


def test_max_unavailable_of_two_allows_two_at_a_time() -> None:
    world = wide(proven(chat(4, rollout={"max_unavailable": 2})))
    assert stopped(planned(world)) == ["chat-0-s1", "chat-1-s1"]


def test_without_surge_and_without_spare_nothing_is_stopped() -> None:
    world = wide(proven(chat(3, rollout={"max_unavailable": 0, "max_surge": 0})))
    made = planned(world)
    assert made.steps == ()
    assert set(waits(made).values()) == {Reason.MAX_UNAVAILABLE}


def test_a_draining_launch_that_still_answers_does_not_count_as_ready() -> None:
    world = chat(4).change_launch("chat-0-s1", stop_asked=True, stop_age_s=1.0)
    assert stopped(planned(wide(proven(world)))) == []


def test_a_model_is_counted_over_all_its_placements() -> None:
    world = chat(2, gpus=2).with_nodes("gpu-c", gpus=2).placement("more", "llama", replicas=2)
    world = world.launch("more-0", on="gpu-c").launch("more-1", on="gpu-c")
    for name in ("chat", "more"):
        world = world.edit_placement(name, restart="please", rollout={"max_surge": 0})
    assert len(stopped(planned(wide(world)))) == 1
    loose = wide(world).with_fleet(max_unavailable_per_model=Limit(count=2))
    assert len(stopped(planned(wide(loose)))) == 2


def test_a_models_own_limit_is_stricter_than_what_its_placements_allow_together() -> None:
    world = chat(2, gpus=2).with_nodes("gpu-c", gpus=2).placement("more", "llama", replicas=2)
    world = wide(world.launch("more-0", on="gpu-c").launch("more-1", on="gpu-c"))
    for name in ("chat", "more"):
        two = {"max_surge": 0, "max_unavailable": 2}
        world = world.edit_placement(name, restart="please", rollout=two)
    assert len(stopped(planned(world))) == 2, "the largest of its placements, without a word"
    strict = world.with_fleet(max_unavailable_per_model=Limit(count=1))
    made = planned(strict)
    assert len(stopped(made)) == 1
    assert Reason.MAX_UNAVAILABLE in waits(made).values()
    share = world.with_fleet(max_unavailable_per_model=Limit(percent=75))
    assert len(stopped(planned(share))) == 3, "a share is of all its replicas"


def test_a_model_that_lacks_a_replica_in_one_placement_spares_the_other() -> None:
    world = chat(2, gpus=2).with_nodes("gpu-c", gpus=2).placement("more", "llama", replicas=2)
    world = wide(world.launch("more-0", on="gpu-c"))
    world = world.launch("more-1", on="gpu-c", state="starting")
    world = world.edit_placement("chat", restart="please", rollout={"max_surge": 0})
    assert stopped(planned(world)) == []
    assert "over all its placements" in change(world, "chat-0").waits


def test_a_limit_that_cannot_be_met_now_is_a_hold_with_the_number_of_gpus_that_are_lacking() -> (
    None
):
    world = World().with_nodes("gpu-a", "gpu-b", gpus=5).profile("llama", gpus_per_node=2)
    world = world.placement("chat", "llama", replicas=4, rollout={"max_unavailable": 0})
    for n in range(4):
        world = world.launch(f"chat-{n}", on="gpu-a" if n < 2 else "gpu-b")
    world = wide(proven_with(world))
    made = planned(world)
    assert made.steps == ()
    found = hold(made, "placement chat")
    assert found.reason is Reason.NO_CAPACITY
    assert "max_unavailable 0" in found.message
    assert "lacks 1 more free GPU on nodes that fit (0 of 2 nodes fit: 2 have 1 free GPU of 5" in (
        found.message
    )
    assert holds(planned(world.node("gpu-c", gpus=2))) == {}, "with a place it surges"


def test_a_successor_on_two_nodes_lacks_the_gpus_of_both() -> None:
    world = World().with_nodes("gpu-a", "gpu-b", gpus=4).profile("llama", gpus_per_node=4, nodes=2)
    world = world.placement("chat", "llama", rollout={"max_unavailable": 0})
    world = wide(proven_with(world.launch("chat-0", on=("gpu-a", "gpu-b"))))
    assert "lacks 8 more free GPUs" in hold(planned(world), "placement chat").message


def proven_with(world: World) -> World:
    return proven(world).edit_placement("chat", rollout={"max_unavailable": 0})


def test_replicas_wait_for_their_turn_to_surge_instead_of_stopping_first() -> None:
    made = planned(wide(proven(chat(3, gpus=3))))
    assert stopped(made) == []
    assert len(started(made)) == 1
    assert {c.symbol for c in made.changes} == {Symbol.START_FIRST}
    assert set(waits(made).values()) == {Reason.MAX_SURGE}


def test_max_parallel_bounds_the_fleet_over_models() -> None:
    world = chat(2, gpus=4)
    for n in range(4):
        world = world.profile(f"m{n}", gpus_per_node=1).placement(f"p{n}", f"m{n}")
        world = world.launch(f"p{n}-0", on="gpu-a").edit_placement(f"p{n}", restart="please")
    world = world.with_fleet(max_parallel=Limit(count=2))
    made = planned(world)
    begun = [c for c in made.changes if c.steps]
    assert len(begun) == 2
    assert Reason.MAX_PARALLEL in waits(made).values()


def test_a_crash_loop_elsewhere_does_not_use_up_max_parallel() -> None:
    world = chat(3, gpus=2).profile("bad", gpus_per_node=1).placement("bad", "bad")
    world = world.launch("bad-0", on="gpu-b", state="crashed", ever_ready=True)
    assert planned(proven(world)).steps


def test_a_ready_replica_is_not_stopped_for_a_successor_without_a_place() -> None:
    world = chat(2, gpus=2, nodes=1, rollout={"max_surge": 0})
    world = wide(world).edit("llama", gpus_per_node=2)
    made = planned(world)
    assert stopped(made) == []
    assert change(world, "chat-0").symbol is Symbol.BLOCKED
    assert hold(made, "replica chat-0").reason is Reason.NO_CAPACITY


def test_gpus_that_are_being_freed_are_waited_for_instead_of_stopping_first() -> None:
    world = chat(3, gpus=2).launch("old-0", on="gpu-b", state="stopping", profile="llama")
    made = planned(proven(world))
    assert stopped(made) == []
    assert waits(made)["chat-0"] is Reason.STOPPING


def test_what_is_not_ready_is_replaced_at_once_without_budget() -> None:
    world = chat(4).change_launch(
        "chat-2-s1", ever_ready=False, health=_loading(), phase="starting"
    )
    made = planned(proven(world))
    assert stopped(made, voluntary=False) == ["chat-2-s1"]


def _loading() -> object:
    from reconciler.core.observed import Health

    return Health()


def test_a_superseded_launch_needs_no_budget() -> None:
    world = chat(4).launch("chat-0", on="gpu-b", gpus=("GPU-gpu-b-9",), seq=2)
    assert stopped(planned(world)) == ["chat-0-s1"]


# --- canary, manual, freeze, suspend -------------------------------------------------------------


def test_an_edited_profile_goes_to_one_replica_first() -> None:
    made = planned(wide(chat(4)).edit("llama", args=("--context", "8")))
    assert [c.address for c in made.changes if c.steps] == ["chat-0"]
    assert {waits(made)[f"chat-{n}"] for n in (1, 2, 3)} == {Reason.CANARY}
    assert "canary" in change(wide(chat(4)).edit("llama", args=("--context", "8")), "chat-0").reason


def test_update_manual_waits_for_an_approval_of_that_very_change() -> None:
    world = wide(proven(chat(3))).edit_placement("chat", rollout={"update": "manual"})
    assert set(waits(planned(world)).values()) == {Reason.MANUAL_UPDATE}
    mark = fingerprint(world.desired.resolved(world.placements["chat"]))
    approved = approve(world, "gpu-a", ApprovedChange("chat-1", mark, mark))
    made = planned(approved)
    assert [c.address for c in made.changes if c.steps] == ["chat-1"]


def test_update_manual_does_not_hold_up_repairs() -> None:
    world = chat(3, rollout={"update": "manual"}).forget_launch("chat-1-s1")
    assert set(started(planned(world))) == {"chat-1"}


def test_a_freeze_holds_changes_and_lets_repairs_go_on() -> None:
    world = proven(chat(4)).forget_launch("chat-3-s1")
    frozen = world.with_fleet(freeze=Freeze(reason="exams", owner="alice"))
    made = planned(frozen)
    assert set(started(made)) == {"chat-3"}
    assert stopped(made) == []
    assert "frozen by alice: exams" in change(frozen, "chat-0").waits
    one = world.edit_placement("chat", freeze=Freeze(reason="x"))
    assert set(waits(planned(one)).values()) == {Reason.FROZEN}


def test_a_freeze_holds_removals_too() -> None:
    world = chat(4).edit_placement("chat", replicas=3)
    assert stopped(planned(world)) == ["chat-3-s1"]
    assert stopped(planned(world.with_fleet(freeze=Freeze(reason="x")))) == []


def test_a_freeze_of_one_placement_holds_its_changes_and_its_removals_and_no_others() -> None:
    world = chat(4, gpus=4).placement("more", "llama", replicas=2)
    world = wide(world.launch("more-0", on="gpu-a").launch("more-1", on="gpu-b"))
    for name in ("chat", "more"):
        world = world.edit_placement(name, restart="please")
    frozen = world.edit_placement("chat", freeze=Freeze(reason="exams"))
    made = planned(frozen.edit_placement("chat", replicas=3))
    assert {c.placement for c in made.changes if c.steps} == {"more"}
    mine = {address: reason for address, reason in waits(made).items() if "chat" in address}
    assert mine == {f"chat-{n}": Reason.FROZEN for n in range(4)}


def crashed(world: World, replica: str = "chat-1") -> World:
    world = world.forget_launch(f"{replica}-s1")
    return world.launch(replica, on="gpu-b", state="crashed", ever_ready=True)


def new_of(world: World, replica: str) -> str:
    (step,) = [s for s in planned(world).steps if getattr(s, "replica", "") == replica]
    assert isinstance(step, StartStep)
    return step.fingerprint


def test_a_crash_under_a_freeze_brings_back_what_ran_and_not_what_the_freeze_holds() -> None:
    before = wide(chat(3))
    old = before.fingerprint("chat")
    world = crashed(before).edit("llama", args=("--context", "8"))
    assert new_of(world, "chat-1") != old, "without a freeze it is the canary"
    for frozen in (
        world.with_fleet(freeze=Freeze()),
        world.edit_placement("chat", freeze=Freeze()),
        world.edit_placement("chat", rollout={"update": "manual"}),
    ):
        assert new_of(frozen, "chat-1") == old
        reasons = set(waits(planned(frozen)).values())
        assert reasons in ({Reason.FROZEN}, {Reason.MANUAL_UPDATE})


def test_a_first_start_under_a_freeze_is_todays() -> None:
    world = World().with_nodes("gpu-a").profile("llama").placement("chat", "llama")
    world = world.with_fleet(freeze=Freeze())
    assert new_of(world, "chat-0") == world.fingerprint("chat")


def test_a_canary_that_has_begun_goes_on_under_a_freeze() -> None:
    world = wide(chat(3, gpus=4)).edit("llama", args=("--context", "8"))
    world = world.launch("chat-0", on="gpu-b", state="starting").with_fleet(freeze=Freeze())
    made = planned(world)
    assert stopped(made) == []
    assert started(made) == {}
    assert waits(made)["chat-0"] is not Reason.FROZEN


def test_update_manual_gives_each_approved_replica_todays_profile_the_first_as_canary() -> None:
    before = wide(chat(4, gpus=4))
    old = before.fingerprint("chat")
    world = before.edit("llama", args=("--context", "8"))
    world = world.edit_placement("chat", rollout={"update": "manual"})
    new = world.fingerprint("chat")
    assert set(waits(planned(world)).values()) == {Reason.MANUAL_UPDATE}
    two = [ApprovedChange(f"chat-{n}", old, new) for n in (1, 2)]
    made = planned(approve(world, "gpu-a", *two))
    assert [c.address for c in made.changes if c.steps] == ["chat-1"]
    assert waits(made) == {
        "chat-0": Reason.MANUAL_UPDATE,
        "chat-2": Reason.CANARY,
        "chat-3": Reason.MANUAL_UPDATE,
    }


def manual_on(node: str) -> World:
    """One replica under `update: manual`, ready on gpu-a and pinned to `node` by now."""
    world = World().with_nodes("gpu-a", "gpu-b", gpus=1).profile("llama", gpus_per_node=1)
    world = world.placement("chat", "llama", nodes=("gpu-a",), rollout={"update": "manual"})
    return world.launch("chat-0", on="gpu-a").edit_placement("chat", nodes=(node,))


ENDED = {"alive": False, "supervised": False, "fresh": False}


def test_a_manual_placement_that_is_moved_and_edited_at_once_is_approved_at_once() -> None:
    edits: tuple[tuple[World, str], ...] = (
        (manual_on("gpu-b"), "is none of the pinned gpu-b"),
        (
            manual_on("gpu-a")
            .edit_node("gpu-a", state="draining")
            .edit_placement("chat", nodes=()),
            "is draining",
        ),
        (manual_on("gpu-a").edit_placement("chat", restart="please"), "a restart is asked for"),
    )
    for before, why in edits:
        old = before.fingerprint("chat")
        world = before.edit("llama", args=("--context", "8"))
        held = change(world, "chat-0")
        assert held.waits_for is Reason.MANUAL_UPDATE
        assert (held.before, held.after) == (old, world.fingerprint("chat"))
        assert why in held.reason
        assert "the profile was edited" in held.reason
        assert "profile.args[0]" in {c.path for c in held.changes}
        approved = approve(world, "gpu-b", *approvable(planned(world)))
        assert change(approved, "chat-0").steps


def test_what_a_person_let_through_is_what_starts_when_the_node_that_ran_it_is_lost() -> None:
    """The first profile is all that a record still tells, and the approvals tell of the rest."""
    world = manual_on("gpu-b").change_launch("chat-0-s1", **{**STATES["stopped"], **ENDED})
    first = world.fingerprint("chat")
    world = world.edit("llama", args=("--context", "8"))
    second = world.fingerprint("chat")
    world = world.edit("llama", args=("--context", "16"))
    third = world.fingerprint("chat")
    world = world.edit_node("gpu-b", state="lost").edit_placement("chat", nodes=())
    for let_through in (
        ApprovedChange("chat-0", first, third),
        ApprovedChange("chat-0", second, third),
    ):
        assert new_of(approve(world, "gpu-a", let_through), "chat-0") == third
    for other in (
        ApprovedChange("chat-0", first, second),
        ApprovedChange("chat-1", first, third),
        ApprovedChange("chat-0", third, third),
    ):
        assert new_of(approve(world, "gpu-a", other), "chat-0") == first


def test_a_start_with_an_older_profile_says_so_and_why() -> None:
    world = manual_on("gpu-a").change_launch("chat-0-s1", **{**STATES["crashed"], **ENDED})
    assert "older profile" not in change(world, "chat-0").reason
    reason = change(world.edit("llama", args=("--context", "8")), "chat-0").reason
    assert "starts with an older profile, the last that was ready" in reason
    assert "`update: manual`" in reason


def test_an_approval_outlives_the_stop_that_comes_first() -> None:
    """Else what ran before would start again, and wait for the same approval."""
    before = manual_on("gpu-a").edit_placement("chat", nodes=())
    old = before.fingerprint("chat")
    world = before.edit("llama", args=("--context", "8"))
    approved = ApprovedChange("chat-0", old, world.fingerprint("chat"))
    assert still_stands(world.desired, approved)
    assert (
        new_of(
            approve(
                world.change_launch("chat-0-s1", **{**STATES["stopped"], **ENDED}),
                "gpu-a",
                approved,
            ),
            "chat-0",
        )
        == approved.after
    )


def test_an_approval_stands_until_git_asks_for_something_else() -> None:
    world = manual_on("gpu-a")
    now = world.fingerprint("chat")
    let_through = ApprovedChange("chat-0", "p1:before", now)
    assert still_stands(world.desired, let_through)
    assert not still_stands(world.edit("llama", args=("-x",)).desired, let_through)
    assert not still_stands(world.remove_placement("chat").desired, let_through)
    rolling = world.edit_placement("chat", rollout={})
    assert not still_stands(rolling.desired, let_through)
    for once in (ApprovedChange("chat-0", now, now), ApprovedChange("chat-0", now)):
        assert not still_stands(world.desired, once), "a move, a restart, a removal"


def test_suspend_stops_what_lives_as_a_removal_and_keeps_its_place_in_git() -> None:
    world = chat(2).placement("spare", "llama").launch("spare-0", on="gpu-a", gpus=("G9",))
    made = planned(world.edit_placement("spare", suspend=True))
    assert stopped(made) == ["spare-0-s1"]
    whole = planned(world.edit_placement("chat", suspend=True))
    assert stopped(whole) == []
    assert Reason.BLAST_RADIUS in waits(whole).values()


def test_what_is_suspended_and_still_serves_says_so() -> None:
    (one,) = diff(*told(chat(1).edit_placement("chat", suspend=True))).replicas
    assert one.reason == "placement chat is suspended; it serves until it is stopped"
    ended = chat(1).change_launch("chat-0-s1", **{**STATES["stopped"], **ENDED})
    (one,) = diff(*told(ended.edit_placement("chat", suspend=True))).replicas
    assert one.reason == "placement chat is suspended"


def told(world: World) -> tuple[Desired, Observed]:
    return world.desired, world.observed


def test_a_suspended_placement_at_rest_plans_nothing() -> None:
    world = World().with_nodes("gpu-a").profile("llama").placement("chat", "llama", suspend=True)
    world = world.launch("chat-0", on="gpu-a", state="stopped")
    assert planned(world).changes == ()


# --- unhealthy -----------------------------------------------------------------------------------


def sick(world: World, *names: str) -> World:
    from tests.core.build_world import STATES

    for name in names:
        world = world.change_launch(f"{name}-s1", **STATES["unhealthy"])
    return world


def test_an_unhealthy_replica_is_replaced() -> None:
    made = planned(sick(chat(4), "chat-1"))
    assert stopped(made) == ["chat-1-s1"]


def test_unhealthy_replicas_are_replaced_one_at_a_time_per_model() -> None:
    world = sick(chat(8, gpus=4), "chat-1", "chat-6")
    world = wide(world).change_launch("chat-6-s1", health=_failing(2000.0))
    made = planned(world)
    assert len([c for c in made.changes if c.steps]) == 1
    assert Reason.MAX_UNAVAILABLE in waits(made).values()


def _failing(seconds: float) -> object:
    from reconciler.core.observed import Health

    return Health(ok=False, age_s=1.0, failing_for_s=seconds)


def test_many_sick_at_once_are_left_alone_but_for_one_probe() -> None:
    made = planned(wide(sick(chat(4), "chat-0", "chat-1", "chat-2")))
    assert len([c for c in made.changes if c.steps]) <= 1
    assert Reason.SICK_TOGETHER in holds(made).values()


def test_unhealthy_report_only_warns() -> None:
    made = planned(sick(chat(4), "chat-1").with_fleet(unhealthy="report"))
    assert made.steps == ()
    assert any("chat-1" in w for w in made.warnings)


def test_a_freeze_does_not_keep_an_unhealthy_replica() -> None:
    made = planned(sick(chat(4), "chat-1").with_fleet(freeze=Freeze(reason="x")))
    assert stopped(made) == ["chat-1-s1"]


# --- what is not understood ----------------------------------------------------------------------


def test_a_record_without_fingerprint_is_kept_and_flagged_even_when_unhealthy() -> None:
    world = sick(chat(3).launch("chat-3", on="gpu-b", record={"fingerprint": ""}), "chat-3")
    world = world.edit_placement("chat", replicas=4, restart="please")
    made = planned(world)
    assert "chat-3-s1" not in stopped(made)
    assert "chat-3" not in started(made)
    assert symbols(made)["chat-3"] == "(?)"
    assert "reconcile stop chat-3-s1" in hold(made, "launch chat-3-s1").message


def test_nothing_is_done_to_an_unreachable_replica() -> None:
    world = proven(chat(4)).silent("gpu-a", remembered=True)
    made = planned(world)
    touched = {getattr(s, "replica", "") for s in made.steps}
    assert touched.isdisjoint({"chat-0", "chat-2"})
    assert hold(made, "replica chat-0").reason is Reason.NODE_UNREACHABLE


# --- who may act ---------------------------------------------------------------------------------


def test_anothers_living_lease_stops_every_voluntary_stop_and_leaves_repairs() -> None:
    world = chat(3).forget_launch("chat-1-s1").launch("chat-1", on="gpu-b", state="rebooted")
    world = proven(world).answers_with("gpu-a", lease=lease(owner="other"))
    made = planned(world)
    assert stopped(made) == []
    assert started(made) == {"chat-1": ("gpu-b",)}
    assert hold(made, "node gpu-a").reason is Reason.LEASE_HELD


def test_an_expired_lease_of_another_is_no_obstacle() -> None:
    world = proven(chat(4)).answers_with("gpu-a", lease=lease(owner="other", remaining_s=0.0))
    assert stopped(planned(world)) == ["chat-0-s1"]


def test_without_an_owner_nobody_acts_and_leases_say_nothing() -> None:
    world = proven(chat(4)).answers_with("gpu-a", lease=lease(owner="other"))
    made = planned(world, owner="")
    assert made.holds == ()
    assert stopped(made) == ["chat-0-s1"]


def test_a_lease_that_cannot_be_read_counts_as_held() -> None:
    world = proven(chat(4)).answers_with("gpu-a", lease=None, lease_error="damaged")
    made = planned(world)
    assert made.steps == ()
    assert hold(made, "node gpu-a").reason is Reason.LEASE_HELD
    assert "`reconcile lease take" in hold(made, "node gpu-a").message


def test_a_held_node_gets_no_step() -> None:
    held = NodeHold(who="alice", reason="new fans")
    world = wide(proven(chat(4))).answers_with("gpu-a", hold=held)
    made = planned(world)
    assert stopped(made) == ["chat-1-s1"]
    assert waits(made)["chat-0"] is Reason.NODE_HELD
    assert hold(made, "node gpu-a").message == "gpu-a: held by alice (new fans)"


def test_a_held_launch_is_left_alone_and_its_neighbours_are_not() -> None:
    held = NodeHold(who="alice", launch="chat-0-s1")
    made = planned(wide(proven(chat(4))).answers_with("gpu-a", hold=held))
    assert stopped(made) == ["chat-1-s1"]


def test_two_documents_of_one_machine_are_held() -> None:
    world = wide(chat(2)).placement("more", "llama").with_nodes("gpu-c", "gpu-d")
    world = world.answers_with("gpu-c", machine_id="m").answers_with("gpu-d", machine_id="m")
    made = planned(world)
    assert hold(made, "node gpu-c").reason is Reason.DUPLICATE_NODE
    assert not {"gpu-c", "gpu-d"} & {n for nodes in started(made).values() for n in nodes}


# --- moves, relabels, repairs --------------------------------------------------------------------


def test_a_draining_node_is_emptied_within_the_limits() -> None:
    world = chat(2, gpus=2).with_nodes("gpu-c", gpus=2).edit_node("gpu-a", state="draining")
    made = planned(world)
    assert started(made) == {"chat-0": ("gpu-c",)} or set(started(made)) == {"chat-0"}
    assert stopped(made) == []


def test_what_a_lost_node_turns_out_to_run_is_kept_until_its_successor_is_ready() -> None:
    world = chat(2, gpus=1).edit_node("gpu-a", state="lost", reason="x")
    back = world.answers_with("gpu-a", hostname="gpu-a")
    made = planned(wide(back))
    assert stopped(made) == []


def test_a_renamed_placement_is_relabelled_and_restarts_nothing() -> None:
    made = planned(chat(2).rename_placement("chat", "talk"))
    assert set(symbols(made).values()) == {"~"}
    steps = [s for s in made.steps if isinstance(s, RelabelStep)]
    assert [(s.launch, s.labels.replica) for s in steps] == [
        ("chat-0-s1", "talk-0"),
        ("chat-1-s1", "talk-1"),
    ]
    assert made.summary.relabel == len(made.steps) == 2


def test_changed_labels_and_owners_are_written_in_place() -> None:
    made = planned(chat(2).edit_placement("chat", owner="team-b"))
    assert [s.kind for s in made.steps] == ["relabel", "relabel"]


def test_another_commit_alone_is_no_work() -> None:
    world = chat(2)
    labels = dataclasses.replace(
        next(iter(world.launches[0].shards.values())).labels,  # type: ignore[type-var]
        revision="an older commit",
    )
    assert planned(world.change_launch("chat-0-s1", labels=labels)).changes == ()


def test_a_living_launch_without_supervisor_is_adopted_and_not_replaced() -> None:
    from tests.core.build_world import STATES

    alone = {**STATES["unsupervised"], "supervised": False, "fresh": False}
    world = chat(4).change_launch("chat-0-s1", **alone)
    made = planned(world)
    assert made.repairs == (AdoptStep("chat-0-s1", ("gpu-a",)),)
    stale = planned(wide(proven(world)))
    assert "chat-0-s1" not in stopped(stale)


def test_a_departed_node_is_held_until_it_is_seen_empty() -> None:
    world = chat(2).depart("gpu-a").with_nodes("gpu-c")
    assert "chat-0-s1" in hold(planned(world), "node gpu-a").message
    empty = world.forget_launch("chat-0-s1")
    assert "node gpu-a" not in holds(planned(empty))
    silent = planned(world.silent("gpu-a"))
    assert Reason.NODE_NOT_EMPTY in {h.reason for h in silent.holds}


def test_a_departed_node_whose_machine_another_document_reaches_was_renamed() -> None:
    world = chat(2).with_nodes("gpu-c")
    machine = world.observed.answer("gpu-a")
    assert machine is not None
    renamed = world.answers_with("gpu-c", machine_id=machine.machine_id).depart("gpu-a")
    assert "node gpu-a" not in holds(planned(renamed))


def test_unlike_drivers_under_one_replica_are_told_and_do_not_hold_it() -> None:
    from reconciler.core.observed import GpuSeen, GpusPart

    world = World().with_nodes("n1", "n2", gpus=1).profile("llama", nodes=2)
    world = world.placement("chat", "llama")
    for name, driver in (("n1", "535.161.07"), ("n2", "535.171.04")):
        part = GpusPart((GpuSeen(f"G-{name}", 0),), driver=driver)
        world = world.answers_with(name, gpus=part)
    made = planned(world)
    assert set(started(made)) == {"chat-0"}
    assert "535.161.07 on n1, 535.171.04 on n2" in made.warnings[0]


def test_unlike_mtus_where_ranks_meet_and_unlike_gid_indexes_are_told() -> None:
    from reconciler.core.observed import InterfaceSeen, Network

    world = (
        World()
        .with_nodes("n1", "n2", gpus=8)
        .profile("llama", engine="vllm", nodes=2, gpus_per_node=8, parallel=Parallelism(tp=16))
    )
    world = world.placement("chat", "llama", fabric="x")
    for name, mtu, index in (("n1", 9000, 3), ("n2", 1500, 1)):
        fabric = NodeFabric("roce", (AdapterPort("mlx5_0"),), index)
        world = world.edit_node(
            name, management=Management(interface="bond0"), fabrics={"x": fabric}
        )
        seen = Network(interfaces=(InterfaceSeen("bond0", up=True, mtu=mtu),))
        world = world.answers_with(name, network=seen)
    made = planned(world)
    assert set(started(made)) == {"chat-0"}
    assert made.warnings == (
        "replica chat-0: its nodes have unlike MTUs where ranks meet (9000 on n1, 1500 on n2)",
        "replica chat-0: its nodes have unlike GID indexes (3 on n1, 1 on n2)",
    )


def test_a_leftover_is_swept_only_where_all_nodes_of_its_launch_are_ours() -> None:
    world = World().with_nodes("n1", "n2").profile("llama", nodes=2).placement("chat", "llama")
    world = world.launch("chat-0", on=("n1", "n2"), ranks={1: "rebooted"})
    assert stopped(planned(world)) == ["chat-0-s1"]
    assert stopped(planned(world.answers_with("n2", lease=lease(owner="other")))) == []


def test_missing_gpus_of_a_node_are_told() -> None:
    from reconciler.core.observed import GpuSeen, GpusPart

    part = GpusPart((GpuSeen("GPU-gpu-a-0", 0), GpuSeen("GPU-gpu-a-1", 1, error="lost")))
    made = planned(chat(2).answers_with("gpu-a", gpus=part))
    assert made.warnings == ("node gpu-a: degraded, 1 of 2 GPUs: GPU-gpu-a-1 (lost)",)


# --- the whole plan ------------------------------------------------------------------------------


def test_a_launch_whose_replica_has_a_better_one_costs_no_capacity() -> None:
    """A lost node is back, and what it runs has been started elsewhere meanwhile."""
    world = chat(3, gpus=4).launch("chat-0", on="gpu-b").launch("chat-1", on="gpu-a")
    made = planned(world)
    assert stopped(made) == ["chat-0-s1", "chat-1-s1"]
    (one,) = made.capacity
    assert (one.wanted, one.ready, one.lowest) == (3, 3, 3)
    (fewer,) = planned(world.edit_placement("chat", replicas=2)).capacity
    assert (fewer.wanted, fewer.ready, fewer.lowest) == (2, 3, 2)


def test_capacity_shows_the_dip() -> None:
    (stop_first,) = planned(proven(chat(4))).capacity
    assert (stop_first.wanted, stop_first.ready, stop_first.lowest) == (4, 4, 3)
    (surge,) = planned(proven(chat(3, gpus=3))).capacity
    assert surge.lowest == 3


def test_the_digest_ignores_suffixes_and_sees_fingerprints_and_places() -> None:
    world = proven(chat(3, gpus=2))
    made = planned(world)
    assert made.plan_digest == planned(world).plan_digest
    assert made.plan_digest != planned(world.edit("llama", args=("--context", "8"))).plan_digest
    assert made.plan_digest != planned(world.edit_node("gpu-b", state="cordoned")).plan_digest


def test_a_plan_survives_json() -> None:
    from reconciler.core.changes import Plan
    from reconciler.core.codec import from_json, to_json

    made = planned(proven(chat(3, gpus=2)).remove_placement("x"))
    assert from_json(Plan, to_json(made)) == from_json(
        Plan, to_json(from_json(Plan, to_json(made)))
    )
