"""The guard: what one whole revision may remove or replace before a person says yes (rule 5).

It looks at the set of all changes of a kind, not at what this pass would do of it, so that a
rollout in small steps cannot pass what a large one would not. What it holds is stops; starts and
repairs go on. An approval stores the set itself and covers every later set that is part of it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reconciler.core.access import Access
from reconciler.core.changes import GuardVerdict, Plan, Reason
from reconciler.core.model import Desired, Limit
from reconciler.core.observed import ApprovedChange
from reconciler.core.words import share

Scope = tuple[str, str]
"""Model and pool."""

UNSEEN = "unseen"
REMOVED = "removed"
REPLACED = "replaced"


@dataclass(frozen=True)
class Guarded:
    """One replica that a revision removes or replaces."""

    scope: Scope
    change: ApprovedChange


@dataclass(frozen=True)
class Guards:
    """All verdicts of one pass."""

    verdicts: tuple[GuardVerdict, ...]

    def stops(self, name: str, scope: Scope) -> GuardVerdict | None:
        """The failed guard that holds a stop of this kind, if any."""
        wanted = scope_name(scope)
        for verdict in self.verdicts:
            if verdict.name == name and not verdict.passed and verdict.scope in (wanted, "fleet"):
                return verdict
        return None


def scope_name(scope: Scope) -> str:
    """`model llama in pool h100`."""
    model, pool = scope
    return f"model {model or '?'} in pool {pool or '?'}"


def judge(
    desired: Desired,
    access: Access,
    *,
    removed: Sequence[Guarded],
    replaced: Sequence[Guarded],
    before: Mapping[Scope, int],
    ready_left: Mapping[str, int],
    approved: frozenset[ApprovedChange],
) -> Guards:
    """Every guard over the whole revision.

    `before`: replicas wanted before, per scope. `ready_left`: ready replicas per model that stay
    wanted. `removed` has those without a successor only: diff has paired the others with theirs.
    """
    rails = desired.fleet.guard
    verdicts = [_unseen(rails.max_unseen_nodes, access)]
    for scope, changes in _by_scope(removed):
        spare = 1 if ready_left.get(scope[0], 0) > 0 else 0
        allowed = max(rails.max_removed.of(before[scope]), spare)
        verdicts.append(
            _verdict(REMOVED, scope, rails.max_removed, allowed, before[scope], changes, approved)
        )
    for scope, changes in _by_scope(replaced):
        allowed = rails.max_replaced.of(before[scope])
        verdicts.append(
            _verdict(REPLACED, scope, rails.max_replaced, allowed, before[scope], changes, approved)
        )
    return Guards(tuple(verdicts))


def approvals(access: Access, fleet: str) -> frozenset[ApprovedChange]:
    """What people approved, as the nodes keep it."""
    leases = (a.lease for a in access.answers.values() if a.lease and a.lease.approvals)
    return frozenset(c for lease in leases if lease.fleet == fleet for c in lease.approvals)


def approvable(plan: Plan) -> tuple[ApprovedChange, ...]:
    """The set that failed guards, and `update: manual`, hold: what `reconcile approve` stores."""
    held = [c for guard in plan.guards if not guard.passed for c in guard.changes]
    held += [
        ApprovedChange(change.address, change.before, change.after)
        for change in plan.changes
        if change.waits_for is Reason.MANUAL_UPDATE
    ]
    return tuple(dict.fromkeys(held))


def _unseen(limit: Limit, access: Access) -> GuardVerdict:
    """One silent node is always allowed: it would stop every rollout of a small fleet."""
    count = len(access.unseen)
    allowed = limit.of(access.expected, least=1)
    passed = count <= allowed
    message = (
        ""
        if passed
        else (
            f"{count} of {access.expected} nodes are out of sight ({_some(access.unseen)}); every"
            f" voluntary stop waits until at most {allowed} are (limit {limit})"
        )
    )
    return GuardVerdict(
        UNSEEN, "fleet", str(limit), f"{count} of {access.expected}", passed, message
    )


def _by_scope(items: Iterable[Guarded]) -> list[tuple[Scope, tuple[ApprovedChange, ...]]]:
    scopes: dict[Scope, list[ApprovedChange]] = defaultdict(list)
    for item in items:
        scopes[item.scope].append(item.change)
    return [
        (scope, tuple(sorted(scopes[scope], key=lambda c: (c.replica, c.before, c.after))))
        for scope in sorted(scopes)
    ]


def _verdict(
    name: str,
    scope: Scope,
    limit: Limit,
    allowed: int,
    before: int,
    changes: tuple[ApprovedChange, ...],
    approved: frozenset[ApprovedChange],
) -> GuardVerdict:
    count = len(changes)
    within = count <= allowed
    by_person = not within and approved.issuperset(changes)
    message = ""
    if not within and not by_person:
        message = (
            f"{scope_name(scope)}: {share(count, before, 'replica')} would be {name}"
            f" ({_some([c.replica for c in changes])}), at most {allowed} without approval"
            f" (limit {limit}); look at the plan, then `reconcile approve`"
        )
    return GuardVerdict(
        name=name,
        scope=scope_name(scope),
        limit=str(limit),
        value=f"{count} of {before}",
        passed=within or by_person,
        message=message,
        changes=changes,
        approved=by_person,
    )


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown
