"""Each row of the sync and health tables, and the conditions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.core.changes import Change, GuardVerdict, Hold, Plan, Reason, StopStep, Symbol
from reconciler.core.model import Desired, Fleet, GpuInventory, Node, Placement, Profile, Revision
from reconciler.core.observed import (
    ApprovedChange,
    ExitKind,
    Lease,
    LookError,
    NodeAnswer,
    NodeHold,
    NodeLook,
    Observed,
    Phase,
    Place,
    Shard,
    ShardExit,
)
from reconciler.core.verdict import (
    Diff,
    Effective,
    JudgedLaunch,
    JudgedReplica,
    LaunchView,
    Verdict,
)
from reconciler.report.passreport import (
    ConditionKind,
    Health,
    PassReport,
    PlacementStatus,
    Revisions,
    Sync,
)
from reconciler.report.status import (
    BLOCKERS,
    NEEDS_A_PERSON,
    node_statuses,
    placement_statuses,
    replica_status,
)
from reconciler.report.status_text import status_text

DESIRED = Desired(
    revision=Revision("a" * 40, "main"),
    fleet=Fleet("test", "id"),
    profiles={"p": Profile("p", model="m")},
    placements={"chat": Placement("chat", "p", replicas=2)},
)
PLAN = Plan(DESIRED.revision)


def replica(
    ordinal: int, verdict: Verdict, *, ready: bool = False, alive: bool = True
) -> JudgedReplica:
    name = f"chat-{ordinal}"
    place = Place(0, "gpu-a", "m", ("g0",), {"http": 20000}, "10.0.0.1")
    view = LaunchView(f"{name}-x", name, "chat", 1, (place,), alive=alive, ready=ready)
    launches = (JudgedLaunch(view, verdict, "because"),) if verdict is not Verdict.MISSING else ()
    return JudgedReplica(name, "chat", ordinal, True, verdict, "because", launches, ready=ready)


def ended(seq: int, exit: ShardExit | None, verdict: Verdict = Verdict.EXITED) -> JudgedLaunch:
    shard = Shard(f"chat-0-{seq}", 0, Phase.ENDED, exit=exit)
    view = LaunchView(f"chat-0-{seq}", "chat-0", "chat", seq, (), shards={0: shard})
    return JudgedLaunch(view, verdict, f"reason {seq}")


def test_a_replica_names_the_newest_launch_that_failed_to_start() -> None:
    crash, refused = ShardExit(ExitKind.EXITED, 2), ShardExit(ExitKind.PREFLIGHT)
    launches = (
        replica(0, Verdict.MATCHING, ready=True).launches[0],
        ended(2, crash),
        ended(3, crash),
        ended(4, refused),
    )
    served = ended(9, crash)
    served = replace(served, view=replace(served.view, ever_ready=True))
    status = replica_status(replace(READY, launches=(*launches, served)))
    assert (status.failed_launch, status.failed_why) == ("chat-0-3", "reason 3")
    assert replica_status(READY).failed_launch == ""


READY = replica(0, Verdict.MATCHING, ready=True)


def status(
    *replicas: JudgedReplica, plan: Plan = PLAN, desired: Desired = DESIRED
) -> PlacementStatus:
    (found,) = placement_statuses(desired, Diff(replicas), plan)
    return found


def change(symbol: Symbol, *, steps: bool = True) -> Change:
    stop = (StopStep("chat-1", "chat-1-x", ("gpu-a",), "r"),) if steps else ()
    return Change("chat-1", "chat", symbol, "r", steps=stop)


@pytest.mark.parametrize(
    ("second", "health"),
    [
        (replica(1, Verdict.MATCHING, ready=True), Health.HEALTHY),
        (replica(1, Verdict.STALE, ready=True), Health.HEALTHY),
        (replica(1, Verdict.EXITED, alive=False), Health.DEGRADED),
        (replica(1, Verdict.TIMED_OUT), Health.DEGRADED),
        (replica(1, Verdict.UNHEALTHY), Health.DEGRADED),
        (replica(1, Verdict.UNREACHABLE, alive=False), Health.UNKNOWN),
        (replica(1, Verdict.UNKNOWN), Health.UNKNOWN),
        (replica(1, Verdict.STARTING), Health.PROGRESSING),
        (replica(1, Verdict.MISSING), Health.DEGRADED),
    ],
)
def test_health_by_the_second_replicas_verdict(second: JudgedReplica, health: Health) -> None:
    assert status(READY, second).health is health


def test_nothing_alive_is_missing() -> None:
    assert status(replica(0, Verdict.MISSING), replica(1, Verdict.MISSING)).health is Health.MISSING


def test_missing_that_this_pass_starts_is_progressing() -> None:
    plan = replace(PLAN, changes=(change(Symbol.START),))
    both = (replica(0, Verdict.MISSING), replica(1, Verdict.MISSING))
    assert status(*both, plan=plan).health is Health.PROGRESSING


def test_suspended_wants_nothing() -> None:
    placement = replace(DESIRED.placements["chat"], suspend=True)
    desired = replace(DESIRED, placements={"chat": placement})
    found = status(replica(0, Verdict.SUSPENDED, alive=False), desired=desired)
    assert (found.health, found.wanted, found.sync) == (Health.SUSPENDED, 0, Sync.SYNCED)


def test_what_serves_against_the_wish_is_not_told_as_suspended() -> None:
    placement = replace(DESIRED.placements["chat"], suspend=True)
    desired = replace(DESIRED, placements={"chat": placement})
    serving = replica(1, Verdict.SUSPENDED, ready=True)
    held = replace(PLAN, changes=(change(Symbol.STOP, steps=False),))
    found = status(serving, desired=desired, plan=held)
    assert (found.health, found.sync, found.ready) == (Health.HEALTHY, Sync.OUT_OF_SYNC, 1)
    due = replace(PLAN, changes=(change(Symbol.STOP),))
    assert status(serving, desired=desired, plan=due).health is Health.PROGRESSING
    ending = replica(1, Verdict.SUSPENDED)
    assert status(ending, desired=desired, plan=held).health is Health.SUSPENDED


@pytest.mark.parametrize(
    ("second", "sync"),
    [
        (replica(1, Verdict.MATCHING, ready=True), Sync.SYNCED),
        (replica(1, Verdict.STARTING), Sync.SYNCED),
        (replica(1, Verdict.UNHEALTHY), Sync.SYNCED),
        (replica(1, Verdict.STALE, ready=True), Sync.OUT_OF_SYNC),
        (replica(1, Verdict.MISSING), Sync.OUT_OF_SYNC),
        (replica(1, Verdict.UNREACHABLE), Sync.UNKNOWN),
        (replica(1, Verdict.UNKNOWN), Sync.UNKNOWN),
    ],
)
def test_sync_by_the_second_replicas_verdict(second: JudgedReplica, sync: Sync) -> None:
    assert status(READY, second).sync is sync


def test_a_rejected_profile_is_out_of_sync_although_all_is_ready() -> None:
    kept = replace(
        replica(1, Verdict.MATCHING, ready=True), effective=Effective(None, rejected=True)
    )
    found = status(READY, kept)
    assert (found.sync, found.health) == (Sync.OUT_OF_SYNC, Health.HEALTHY)


def test_a_hold_that_needs_a_person_is_stalled_and_one_of_capacity_is_blocked() -> None:
    holds = (
        Hold("replica chat-1", Reason.NO_CAPACITY, "0 of 3 fit", "chat"),
        Hold("replica chat-1", Reason.REJECTED, "never ready", "chat"),
        Hold("replica other-0", Reason.STUCK, "not ours", "other"),
    )
    found = status(READY, replica(1, Verdict.MISSING), plan=replace(PLAN, holds=holds))
    stalled = found.condition(ConditionKind.STALLED)
    blocked = found.condition(ConditionKind.BLOCKED)
    assert (stalled.status, stalled.reason) == (True, Reason.REJECTED)
    assert (blocked.status, blocked.reason) == (True, Reason.NO_CAPACITY)
    assert found.condition(ConditionKind.READY).reason is Reason.NO_CAPACITY


def test_a_failed_guard_blocks_the_placements_of_its_set() -> None:
    guard = GuardVerdict(
        "removed", "model m", "30%", "2 of 2", False, changes=(ApprovedChange("chat-1", "p1:a"),)
    )
    other = replica(1, Verdict.MATCHING, ready=True)
    found = status(READY, other, plan=replace(PLAN, guards=(guard,)))
    blocked = found.condition(ConditionKind.BLOCKED)
    assert (blocked.status, blocked.reason) == (True, Reason.BLAST_RADIUS)
    approved = replace(PLAN, guards=(replace(guard, approved=True),))
    assert not status(READY, other, plan=approved).condition(ConditionKind.BLOCKED).status


def test_a_replica_shows_its_endpoint_and_place() -> None:
    (shown, _) = status(READY, replica(1, Verdict.EXITED, alive=False)).replicas
    assert (shown.endpoint, shown.nodes, shown.launch) == ("10.0.0.1:20000", ("gpu-a",), "chat-0-x")


def test_nodes_are_told_with_why_they_were_not_seen() -> None:
    gpus = GpuInventory("h100", 8)
    desired = replace(
        DESIRED,
        nodes={n: Node(n, f"10.0.0.{i}", "h100", gpus) for i, n in enumerate(("a", "b", "c"))},
        departed=frozenset({"c"}),
    )
    held = NodeAnswer(
        "1.0",
        "m",
        "b",
        lease=Lease("id", "other", 3, 20.0),
        hold=NodeHold("kim", "fan"),
    )
    observed = Observed(
        "me",
        {
            "a": NodeLook("a", error=LookError.UNREACHABLE, detail="refused", hint="is it on?"),
            "b": NodeLook("b", answer=held),
        },
    )
    a, b, c = node_statuses(desired, observed)
    assert (a.seen, a.error, a.detail) == (False, "NodeUnreachable", "refused; is it on?")
    assert (b.seen, b.held_by, b.lease_owner) == (True, "kim: fan", "other")
    assert (c.seen, c.state) == (False, "departed")


def test_a_held_launch_is_told_as_that_and_not_as_its_whole_node() -> None:
    desired = replace(DESIRED, nodes={"b": Node("b", "10.0.0.1", "h100", GpuInventory("h100", 8))})
    hold = NodeHold("kim", "looks at it", 3600.0, launch="chat-0-x")
    answer = NodeAnswer("1.0", "m", "b", hold=hold)
    nodes = node_statuses(desired, Observed("me", {"b": NodeLook("b", answer=answer)}))
    assert (nodes[0].held_by, nodes[0].held_launch) == ("kim: looks at it", "chat-0-x")
    said = status_text(PassReport("me", "now", Revisions(), nodes=nodes))
    assert "b: launch chat-0-x is held by kim: looks at it (for another 1h)" in said


def test_every_reason_is_documented_once_and_no_other() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "reasons.md").read_text()
    rows = [line.split("|")[1].strip() for line in text.splitlines() if line.startswith("| ")]
    assert rows[1:] == [reason.value for reason in Reason]


def test_no_reason_is_both_a_blocker_and_a_persons() -> None:
    assert not NEEDS_A_PERSON & BLOCKERS


def test_what_is_due_and_nobody_begins_is_missing() -> None:
    plan = replace(PLAN, changes=(change(Symbol.START),))
    both = (replica(0, Verdict.MISSING), replica(1, Verdict.MISSING))
    (found,) = placement_statuses(DESIRED, Diff(both), plan, acting=False)
    assert found.health is Health.MISSING
    assert not next(c for c in found.conditions if c.kind is ConditionKind.RECONCILING).status


def test_what_perhaps_runs_out_of_sight_is_not_shown_where_it_once_ran() -> None:
    lost = replica(1, Verdict.UNREACHABLE, alive=False)
    shown = replica_status(replace(lost, blocked="perhaps on gpu-b"))
    assert (shown.nodes, shown.reason) == ((), "perhaps on gpu-b")
