"""What a pass amounts to: its exit code, and whether anything is still on the way."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from reconciler.core import remarks
from reconciler.core.changes import Plan, Reason, Symbol
from reconciler.core.verdict import Verdict
from reconciler.errors import Exit
from reconciler.report.passreport import (
    HeadError,
    Health,
    PassReport,
    StepOutcome,
)

POLICY = frozenset(
    {
        Reason.BLAST_RADIUS,
        Reason.FROZEN,
        Reason.MANUAL_UPDATE,
        Reason.WINDOW_CLOSED,
        Reason.LEASE_HELD,
        Reason.FENCED,
    }
)
"""Held by a guard, a policy or a lease: exit code 4."""

IN_PASSING = frozenset(
    {
        Reason.CANARY,
        Reason.MAX_UNAVAILABLE,
        Reason.MAX_PARALLEL,
        Reason.MAX_SURGE,
        Reason.STOPPING,
        Reason.SUSPENDED,
        Reason.BACKOFF,
    }
)
"""What the next passes resolve by themselves is no failure of this one."""

DONE, SKIPPED = "done", "skipped"


def exit_code(
    plan: Plan | None,
    steps: Iterable[StepOutcome],
    *,
    head_error: HeadError | None = None,
    lease_held_by: str = "",
    unpublished: bool = False,
) -> Exit:
    """Of a pass that acts. The worst counts: an error, then a block, then a part left undone."""
    if head_error is not None or plan is None:
        return Exit.ERROR
    if lease_held_by or is_blocked(plan):
        return Exit.BLOCKED
    held = any(h.reason not in IN_PASSING for h in plan.holds)
    failed = any(step.result != DONE for step in steps)
    return Exit.PARTIAL if held or failed or unpublished else Exit.OK


def with_unfit(plan: Plan, steps: Iterable[StepOutcome]) -> Plan:
    """`plan` with a hold for each launch that a node was not fit for, or its successor."""
    found: dict[str, dict[str, str]] = {}
    for step in steps:
        if step.kind in ("check", "start") and step.code == "preflight" and step.result != SKIPPED:
            found.setdefault(step.subject, {})[step.node] = step.message
    return remarks.unfit(plan, found)


def dry_exit_code(plan: Plan, *, detailed: bool) -> Exit:
    """Of a plan that was only shown. A failed guard is always told: merging it would block.

    That a person says when (`update: manual`) is how such a placement goes, and can be said only
    after the merge: each pull request that edits one would fail.
    """
    if is_blocked(plan, POLICY - {Reason.MANUAL_UPDATE}):
        return Exit.BLOCKED
    if not detailed:
        return Exit.OK
    if has_changes(plan):
        return Exit.CHANGES
    held = any(h.reason not in IN_PASSING for h in plan.holds)
    return Exit.PARTIAL if held else Exit.OK


def is_blocked(plan: Plan, policy: Collection[Reason | None] = POLICY) -> bool:
    """Whether a guard, a policy or a lease holds any of it."""
    return (
        any(not guard.passed for guard in plan.guards)
        or any(hold.reason in policy for hold in plan.holds)
        or any(change.waits_for in policy for change in plan.changes)
    )


def passed_guard(plan: Plan) -> bool:
    """Whether every guard lets the whole revision through, by itself or by an approval."""
    return all(guard.passed for guard in plan.guards)


def has_changes(plan: Plan) -> bool:
    """Whether something is to be done; what is unknown and left alone is nothing to do."""
    return any(c.symbol is not Symbol.UNKNOWN for c in plan.changes)


def is_converged(report: PassReport) -> bool:
    """Everything wanted is ready, and nothing is to be done."""
    if report.plan is None or report.head_error or report.lease_held_by:
        return False
    ready = all(p.health in (Health.HEALTHY, Health.SUSPENDED) for p in report.placements)
    return ready and not has_changes(report.plan) and not report.plan.holds


def is_moving(report: PassReport) -> bool:
    """Something starts, stops or waits for what does: the next pass will see more.

    Steps that the nodes refused do not count: the next pass would be refused again.
    """
    if report.plan is None:
        return False
    return (
        any(step.result == DONE for step in report.steps)
        or any(r.verdict in _ON_THE_WAY for p in report.placements for r in p.replicas)
        or any(c.waits_for in IN_PASSING for c in report.plan.changes)
        or any(h.reason in IN_PASSING - {Reason.SUSPENDED} for h in report.plan.holds)
    )


_ON_THE_WAY = frozenset({Verdict.STARTING.value, Verdict.STOPPING.value})
