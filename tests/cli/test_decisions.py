"""The small functions of a pass: what is in force, what fewer rights leave, outcomes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.core.changes import (
    AdoptStep,
    Change,
    GuardVerdict,
    Hold,
    Plan,
    Reason,
    StopStep,
    Symbol,
)
from reconciler.core.model import Revision
from reconciler.core.observed import ApprovedChange, Lease, NodeLook, Observed, Shard
from reconciler.errors import Exit
from reconciler.loop.limits import only_on, only_repairs
from reconciler.loop.outcome import (
    dry_exit_code,
    exit_code,
    is_converged,
    is_moving,
    passed_guard,
)
from reconciler.loop.revisions import (
    departed,
    in_force,
    is_empty,
    is_rewritten,
    lease_facts,
    pruned,
    still_departed,
)
from reconciler.report.passreport import (
    HeadError,
    Health,
    PassReport,
    PlacementStatus,
    ReplicaStatus,
    Revisions,
    StepOutcome,
    Sync,
)
from reconciler.report.status_text import result_text
from tests.cli.fakes import FLEET, answer, desired, ready_shard

PLAN = Plan(Revision("a" * 40))


# --- In force ---------------------------------------------------------------------------------


def test_the_newest_of_heads_own_history_is_in_force() -> None:
    """A node that was down names an older one, and it may be in the majority."""
    assert in_force({"old": 5, "new": 1}, ["head", "new", "old"]) == "new"


def test_a_commit_that_left_the_history_counts_only_where_no_other_is_named() -> None:
    assert in_force({"gone": 5, "old": 1}, ["head", "old"]) == "old"
    assert in_force({"gone": 5}, ["head", "old"]) == "gone"
    assert in_force({"gone": 2, "lost": 1}, ["head"]) == "gone"


def test_no_lease_names_none() -> None:
    assert in_force({}, ["head"]) == ""


def test_one_named_commit_needs_no_history() -> None:
    def history() -> list[str]:
        raise AssertionError("reading a history costs time on each pass")
        yield

    assert in_force({"one": 3}, history()) == "one"


def test_a_commit_outside_heads_history_means_that_it_was_rewritten() -> None:
    assert is_rewritten("gone", "head", ["head", "old"])
    assert not is_rewritten("old", "head", ["head", "old"])
    assert not is_rewritten("head", "head", [])
    assert not is_rewritten("", "head", [])


def test_leases_of_another_fleet_say_nothing() -> None:
    ours = answer("a", lease=Lease(FLEET, revision="one", root_commit="r"))
    theirs = answer("b", lease=Lease("other", revision="two", root_commit="q"))
    observed = Observed("me", {"a": NodeLook("a", ours), "b": NodeLook("b", theirs)})
    facts = lease_facts(observed, FLEET)
    assert (dict(facts.revisions), facts.roots) == ({"one": 1}, frozenset({"r"}))


def test_what_one_node_forgot_another_one_knows() -> None:
    a = answer("a", lease=Lease(FLEET, departed={"x": "one"}))
    b = answer("b", lease=Lease(FLEET, approvals=(ApprovedChange("chat-0", "p1:a"),)))
    facts = lease_facts(Observed("me", {"a": NodeLook("a", a), "b": NodeLook("b", b)}), FLEET)
    assert facts.departed == {"x": "one"}
    assert len(facts.approvals) == 1


def test_an_approval_that_was_carried_out_covers_nothing_later() -> None:
    done, ahead = ApprovedChange("chat-0", "p1:a"), ApprovedChange("chat-1", "p1:a")
    assert pruned((done, ahead), [ahead], desired("one")) == (ahead,)


# --- Departed nodes ---------------------------------------------------------------------------


def test_a_departed_nodes_document_comes_from_the_commit_that_is_named() -> None:
    head = replace(desired("two"), nodes={})
    stored = {"c": "commit-of-c"}
    nodes, commits = departed(head, None, stored, lambda commit: desired("one"))
    assert (set(nodes), commits) == ({"c"}, {"c": "commit-of-c"})


def test_a_node_that_came_back_is_not_departed() -> None:
    nodes, _ = departed(desired("two"), desired("one"), {"c": "x"}, lambda commit: None)
    assert nodes == {}


def test_empty_means_seen_whole_and_without_life() -> None:
    shard = ready_shard(desired("one"), "chat-0", "a")
    assert is_empty(answer("a"))
    assert is_empty(answer("a", replace(shard, alive=False)))
    assert not is_empty(answer("a", shard))
    assert not is_empty(answer("a", Shard("odd", record_error="absent", alive=True)))
    assert not is_empty(replace(answer("a"), shards_error="permission denied"))
    assert not is_empty(None)


def test_a_silent_departed_node_stays_named() -> None:
    observed = Observed("me", {"a": NodeLook("a", answer("a"))})
    assert still_departed({"a": "one", "b": "one"}, observed) == {"b": "one"}


def test_a_node_that_was_renamed_has_not_departed() -> None:
    shard = ready_shard(desired("one"), "chat-0", "a")
    machine = answer("a", shard)
    looks = {n: NodeLook(n, replace(machine, machine_id=m)) for n, m in (("a", "m1"), ("b", "m2"))}
    assert still_departed({"a": "one"}, Observed("me", looks)) == {"a": "one"}
    looks["b"] = NodeLook("b", replace(machine, machine_id="m1"))
    assert still_departed({"a": "one"}, Observed("me", looks)) == {}


# --- Fewer rights -----------------------------------------------------------------------------


def stop(*nodes: str, voluntary: bool = True) -> StopStep:
    return StopStep("chat-0", "chat-0-x", nodes, "r", voluntary)


def test_only_repairs_keeps_what_restores_and_says_why_the_rest_waits() -> None:
    plan = replace(
        PLAN,
        changes=(
            Change("a-0", "a", Symbol.START, "r", "missing", steps=(stop("n"),)),
            Change("b-0", "b", Symbol.STOP_FIRST, "r", "exited", steps=(stop("n"),)),
            Change("c-0", "c", Symbol.STOP_FIRST, "r", "stale", steps=(stop("n"),)),
            Change("d-0", "d", Symbol.STOP, "r", "surplus", steps=(stop("n"),)),
            Change("e-0", "e", Symbol.RELABEL, "r", "", steps=(stop("n"),)),
            Change("f-0", "f", Symbol.STOP, "r", "x", steps=(stop("n", voluntary=False),)),
        ),
        repairs=(AdoptStep("g-0-x", ("n",)),),
    )
    kept = only_repairs(plan, "head is bad", Reason.SCHEMA_FAILED)
    assert [c.address for c in kept.changes if c.steps] == ["a-0", "b-0", "f-0"]
    assert kept.changes[2].waits_for is Reason.SCHEMA_FAILED
    assert kept.repairs == plan.repairs


def test_a_step_that_needs_a_node_without_lease_is_taken_out_whole() -> None:
    change = Change("a-0", "a", Symbol.STOP, "r", steps=(stop("n", "m"), stop("n")))
    adopt = AdoptStep("x", ("m",))
    plan = only_on(
        replace(PLAN, changes=(change,), repairs=(adopt,)), {"n"}, "no lease", Reason.LEASE_HELD
    )
    assert plan.changes[0].steps == (stop("n"),)
    assert plan.changes[0].waits_for is Reason.LEASE_HELD
    assert plan.repairs == ()


# --- Outcomes ---------------------------------------------------------------------------------

FAILED_GUARD = GuardVerdict("removed", "m", "30%", "2 of 2", passed=False)
DONE = StepOutcome("start", "x", "n", "done")
REFUSED = StepOutcome("start", "x", "n", "refused", "gpu-taken")
NO_ROOM = Hold("replica a-0", Reason.NO_CAPACITY, "0 of 1")
CANARY = Hold("replica a-1", Reason.CANARY, "waits")


def waiting(*reasons: Reason | None) -> Plan:
    """A replacement for each reason that it waits for."""
    changes = (
        Change(f"a-{n}", "a", Symbol.STOP_FIRST, "r", waits="w", waits_for=reason)
        for n, reason in enumerate(reasons)
    )
    return replace(PLAN, changes=tuple(changes))


HELD_BY_HAND = waiting(Reason.MANUAL_UPDATE)


@pytest.mark.parametrize(
    ("plan", "steps", "error", "lease", "code"),
    [
        (PLAN, (), None, "", Exit.OK),
        (PLAN, (DONE,), None, "", Exit.OK),
        (PLAN, (DONE, REFUSED), None, "", Exit.PARTIAL),
        (replace(PLAN, holds=(NO_ROOM,)), (DONE,), None, "", Exit.PARTIAL),
        (replace(PLAN, holds=(CANARY,)), (DONE,), None, "", Exit.OK),
        (replace(PLAN, guards=(FAILED_GUARD,)), (DONE,), None, "", Exit.BLOCKED),
        (replace(PLAN, holds=(Hold("x", Reason.FROZEN, "y"),)), (), None, "", Exit.BLOCKED),
        (HELD_BY_HAND, (), None, "", Exit.BLOCKED),
        (HELD_BY_HAND, (DONE,), None, "", Exit.BLOCKED),
        (PLAN, (), None, "other", Exit.BLOCKED),
        (PLAN, (DONE,), HeadError("SchemaFailed", "1"), "", Exit.ERROR),
        (None, (), None, "", Exit.ERROR),
    ],
)
def test_the_exit_code_tells_the_worst(
    plan: Plan | None,
    steps: tuple[StepOutcome, ...],
    error: HeadError | None,
    lease: str,
    code: Exit,
) -> None:
    assert exit_code(plan, steps, head_error=error, lease_held_by=lease) is code


@pytest.mark.parametrize(
    ("reasons", "told"),
    [
        ((), "nothing was done"),
        ((None, Reason.CANARY), "nothing was done; 2 changes wait for a later pass"),
        (
            (Reason.MANUAL_UPDATE, Reason.BLAST_RADIUS, Reason.FROZEN),
            "nothing was done; 3 changes wait for a person (BlastRadius, Frozen, ManualUpdate)",
        ),
        (
            (Reason.MAX_PARALLEL, Reason.NO_CAPACITY, Reason.REJECTED),
            "nothing was done; 1 change waits for a later pass; 1 change waits for a person"
            " (ProfileRejected); 1 change is held (NoCapacity)",
        ),
    ],
)
def test_what_waits_is_told_by_who_ends_it(reasons: tuple[Reason | None, ...], told: str) -> None:
    made = report(waiting(*reasons), exit_code=int(Exit.BLOCKED))
    assert result_text(made, 1.0) == f"blocked: {told}\n"


CHANGED = replace(PLAN, changes=(Change("a-0", "a", Symbol.START, "r"),))


@pytest.mark.parametrize(
    ("plan", "detailed", "code"),
    [
        (PLAN, True, Exit.OK),
        (CHANGED, False, Exit.OK),
        (CHANGED, True, Exit.CHANGES),
        (replace(PLAN, changes=(Change("a", "a", Symbol.UNKNOWN, "r"),)), True, Exit.OK),
        (replace(PLAN, holds=(NO_ROOM,)), True, Exit.PARTIAL),
        (replace(PLAN, holds=(NO_ROOM,)), False, Exit.OK),
        (HELD_BY_HAND, False, Exit.OK),
        (HELD_BY_HAND, True, Exit.CHANGES),
        (waiting(Reason.FROZEN), False, Exit.BLOCKED),
        (replace(CHANGED, guards=(FAILED_GUARD,)), False, Exit.BLOCKED),
    ],
)
def test_the_exit_code_of_a_dry_run(plan: Plan, detailed: bool, code: Exit) -> None:
    assert dry_exit_code(plan, detailed=detailed) is code


def test_an_approved_guard_has_passed() -> None:
    approved = replace(FAILED_GUARD, passed=True, approved=True)
    assert passed_guard(replace(PLAN, guards=(approved,)))
    assert not passed_guard(replace(PLAN, guards=(FAILED_GUARD,)))


def placement(health: Health, verdict: str = "matching") -> PlacementStatus:
    replica = ReplicaStatus("a-0", verdict, "r", ready=health is Health.HEALTHY)
    return PlacementStatus("a", "m", "p", Sync.SYNCED, health, 1, 1, (), (replica,))


def report(plan: Plan = PLAN, *placements: PlacementStatus, **more: object) -> PassReport:
    base = PassReport("me", "now", Revisions(), plan=plan, placements=placements)
    return replace(base, **more)  # type: ignore[arg-type]


def test_converged_is_everything_ready_and_nothing_to_do() -> None:
    assert is_converged(report(PLAN, placement(Health.HEALTHY)))
    assert is_converged(report(PLAN, placement(Health.SUSPENDED)))
    assert not is_converged(report(PLAN, placement(Health.PROGRESSING)))
    assert not is_converged(report(CHANGED, placement(Health.HEALTHY)))
    assert not is_converged(report(replace(PLAN, holds=(NO_ROOM,)), placement(Health.HEALTHY)))
    assert not is_converged(report(PLAN, placement(Health.HEALTHY), lease_held_by="x"))


def test_moving_is_what_the_next_pass_may_see_finished() -> None:
    assert is_moving(report(PLAN, steps=(DONE,)))
    assert is_moving(report(PLAN, placement(Health.PROGRESSING, "starting")))
    assert is_moving(report(replace(PLAN, holds=(CANARY,))))
    assert not is_moving(report(CHANGED, steps=(REFUSED,)))
    assert not is_moving(report(replace(PLAN, holds=(NO_ROOM,))))
