"""Desired, observed and their difference in; the whole decision of one pass out.

`plan` chooses the order in which replicas are looked at, and nothing else: what may happen to one
is in `starting`, `replacing` and `leaving`, what may happen at all in `gates`, `guard` and
`rollout`, and where in `place`.
Starts come before stops, so that GPUs go to what is missing before they go to a surge; what ran
before comes before what never did, so that a new placement cannot take the place of an old one
that is between two launches.

The same input gives the same plan, but for launch suffixes: nothing depends on the order of files,
nodes or mappings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from reconciler.core import guard, leaving, members, remarks, replacing, starting, tally, tidy
from reconciler.core.access import Access, look_at
from reconciler.core.capacity import capacity
from reconciler.core.changes import (
    Change,
    GuardVerdict,
    Hold,
    Plan,
    Reason,
    Summary,
    Symbol,
)
from reconciler.core.digest import digest
from reconciler.core.gates import Gates
from reconciler.core.guard import Guarded, Guards
from reconciler.core.ids import IdSource
from reconciler.core.labels import LabelBook
from reconciler.core.model import Desired
from reconciler.core.observed import ApprovedChange, Observed
from reconciler.core.occupancy import Ledger
from reconciler.core.parts import (
    Draft,
    Parts,
    approved_change,
    old_launch,
    scope_of,
    to_be_replaced,
    todays,
    with_gates,
)
from reconciler.core.place import Placer
from reconciler.core.rollout import Budget
from reconciler.core.starts import Starter
from reconciler.core.tally import Tally
from reconciler.core.verdict import Diff, JudgedLaunch, JudgedReplica, Verdict

_DOWN = frozenset({Verdict.MISSING, Verdict.EXITED, Verdict.TIMED_OUT, Verdict.STOPPING})


def plan(desired: Desired, observed: Observed, diff: Diff, ids: IdSource) -> Plan:
    """The decision of one pass. `ids` gives the suffixes of new launches."""
    access, node_holds = look_at(desired, observed)
    labels = LabelBook(desired)
    counts = tally.take(desired, diff, labels)
    parts = _parts(desired, access, diff, counts, labels, ids)
    draft = parts.draft
    draft.holds += node_holds
    draft.holds += remarks.departed(desired, access)
    draft.warnings += remarks.lacking_gpus(desired, access)
    for stray in diff.strays:
        _stray(parts, stray)
    replicas = counts.odd
    for replica in replicas:
        leaving.tidy_up(parts, replica)
    wanted = [r for r in replicas if r.wanted and not desired.placements[r.placement].suspend]
    for replica in replicas:
        if replica.wanted:
            leaving.relabel(parts, replica)
    down = [r for r in wanted if _is_down(r)]
    for replica in sorted(down, key=_starts_first):
        starting.start(parts, replica)
    for replica in sorted((r for r in replicas if _is_leaving(desired, r)), key=_leaves_first):
        leaving.remove(parts, replica)
    rest = [r for r in wanted if not _is_down(r)]
    for replica in sorted(rest, key=_replaced_first):
        _running(parts, replica)
    members.keep_up_to_date(parts, observed, diff)
    return _put_together(desired, counts, parts)


# --- what is done to whom ------------------------------------------------------------------------


def _is_down(replica: JudgedReplica) -> bool:
    """Wanted, and no launch of it lives that could be kept for now."""
    return replica.verdict in _DOWN and old_launch(replica) is None


def _is_leaving(desired: Desired, replica: JudgedReplica) -> bool:
    if not replica.wanted:
        return True
    return desired.placements[replica.placement].suspend


def _starts_first(replica: JudgedReplica) -> tuple[bool, str, bool, int, str]:
    """What ran before, then in order; but of a placement the canary, for which the others wait."""
    canary = replica.effective is not None and replica.effective.canary
    ran = bool(replica.launches) or canary
    return not ran, replica.placement, not canary, replica.ordinal, replica.replica


def _leaves_first(replica: JudgedReplica) -> tuple[bool, str, int, str]:
    return replica.ready, replica.placement, -replica.ordinal, replica.replica


def _replaced_first(replica: JudgedReplica) -> tuple[bool, bool, bool, str, int, str]:
    """What serves nobody first, then what is being drained, then in order."""
    old = old_launch(replica)
    unhealthy = old is not None and old.verdict is Verdict.UNHEALTHY
    misplaced = old is not None and old.verdict is Verdict.MISPLACED
    return (
        replica.ready,
        not unhealthy,
        not misplaced,
        replica.placement,
        replica.ordinal,
        replica.replica,
    )


def _running(parts: Parts, replica: JudgedReplica) -> None:
    """A wanted replica with something alive, in sight or not."""
    old = old_launch(replica)
    if replica.effective and replica.effective.rejected:
        _rejected(parts, replica)
    if replica.verdict is Verdict.UNREACHABLE:
        leaving.unreachable(parts, replica, None)
    elif replica.verdict is Verdict.UNKNOWN:
        return
    elif any(j.verdict in (Verdict.UNREACHABLE, Verdict.UNKNOWN) for j in replica.launches):
        # Part of what it may be doing is out of sight: what is seen of it stays as it is.
        if old:
            leaving.unreachable(parts, replica, None)
    elif old is None:
        _calm(parts, replica)
    elif replica.current and replica.current != old.view.launch:
        replacing.under_way(parts, replica, old, replica.current)
    elif old.verdict is Verdict.UNHEALTHY and parts.desired.fleet.unhealthy == "report":
        parts.draft.warnings.append(
            f"replica {replica.replica}: {old.reason} (reported only: `unhealthy: report`)"
        )
    else:
        replacing.replace(parts, replica, old)


def _calm(parts: Parts, replica: JudgedReplica) -> None:
    """Nothing to replace today; it may be waiting for the canary."""
    effective = replica.effective
    if effective is None or not effective.waiting:
        return
    for judged in replica.launches:
        if judged.verdict is Verdict.MATCHING or judged.view.launch == replica.current:
            if judged.view.fingerprint != todays(parts, replica.placement):
                replacing.waiting_for_canary(parts, replica, judged)
            return


def _rejected(parts: Parts, replica: JudgedReplica) -> None:
    """Once per placement: it serves, but not what git says."""
    subject = f"placement {replica.placement}"
    if not any(h.subject == subject and h.reason is Reason.REJECTED for h in parts.draft.holds):
        assert replica.effective is not None
        parts.draft.holds.append(
            Hold(subject, Reason.REJECTED, replica.effective.reason, replica.placement)
        )


def _stray(parts: Parts, stray: JudgedLaunch) -> None:
    parts.draft.repairs += tidy.repairs(stray, parts.access)
    if stray.verdict is Verdict.UNKNOWN:
        leaving.unknown(parts, stray.view.replica or stray.view.launch, "", stray)


# --- what it leans on ----------------------------------------------------------------------------


def _parts(
    desired: Desired,
    access: Access,
    diff: Diff,
    counts: Tally,
    labels: LabelBook,
    ids: IdSource,
) -> Parts:
    ledger = Ledger(desired, access.answers, diff)
    placer = Placer(desired, access, ledger, diff.quarantines, _beside(diff, counts))
    approved = guard.approvals(access, desired.fleet.id)
    nothing = Gates(desired, access, Guards(()), approved, diff.brakes)
    parts = Parts(
        desired=desired,
        access=access,
        gates=nothing,
        budget=Budget(desired, counts),
        starter=Starter(desired, access, ledger, placer, labels, ids),
        labels=labels,
        draft=Draft(),
        healing={r.model for r in counts.odd if r.replica in counts.in_transition},
    )
    guards = _guards(parts, counts, approved)
    return with_gates(parts, Gates(desired, access, guards, approved, diff.brakes))


def _guards(parts: Parts, counts: Tally, approved: frozenset[ApprovedChange]) -> Guards:
    """The guard looks at all that this revision would stop, not at what is due now."""
    removed: list[Guarded] = []
    replaced: list[Guarded] = []
    for replica in counts.odd:
        scope = scope_of(replica)
        if _is_leaving(parts.desired, replica):
            if tally.leaves(replica):
                going = [j for j in replica.launches if tally.is_doomed(j)] or replica.launches
                before = going[0].view.fingerprint
                removed.append(Guarded(scope, ApprovedChange(replica.replica, before)))
            continue
        live = to_be_replaced(parts, replica)
        if live:
            change = approved_change(parts, replica, live)
            replaced.append(Guarded(scope, change))
    return guard.judge(
        parts.desired,
        parts.access,
        removed=removed,
        replaced=replaced,
        before=counts.before,
        ready_left=counts.model_ready_wanted,
        approved=approved,
    )


def _beside(diff: Diff, counts: Tally) -> Mapping[str, Mapping[str, int]]:
    """Placement → node → its live launches there, of placements that place something."""
    near: dict[str, Counter[str]] = {r.placement: Counter() for r in counts.odd if r.wanted}
    for replica in diff.replicas:
        if replica.placement in near:
            for judged in replica.launches:
                if judged.view.alive:
                    near[replica.placement].update(judged.view.seen_nodes)
    return near


# --- the result ----------------------------------------------------------------------------------


def _put_together(desired: Desired, counts: Tally, parts: Parts) -> Plan:
    draft = parts.draft
    draft.warnings += remarks.unlike_ranks(draft.changes, parts.access)
    draft.warnings += remarks.apart(draft.changes, parts.starter.gpus_of)
    guards = tuple(_that_holds(verdict, draft) for verdict in parts.gates.guards.verdicts)
    draft.holds += [
        Hold(f"guard {v.name}: {v.scope}", Reason.BLAST_RADIUS, v.message)
        for v in guards
        if not v.passed
    ]
    order = {r.replica: (r.placement, r.ordinal) for r in counts.odd}
    changes = tuple(
        sorted(draft.changes, key=lambda c: (*order.get(c.address, ("~", 0)), c.address))
    )
    unique = {(h.subject, str(h.reason), h.message): h for h in draft.holds}
    holds = tuple(unique[key] for key in sorted(unique))
    return Plan(
        revision=desired.revision,
        changes=changes,
        holds=holds,
        guards=guards,
        capacity=capacity(desired, counts, changes),
        warnings=tuple(draft.warnings),
        repairs=tuple(draft.repairs),
        summary=_summary(changes, holds, counts),
        plan_digest=digest(desired.revision, changes),
    )


def _that_holds(verdict: GuardVerdict, draft: Draft) -> GuardVerdict:
    """Nodes out of sight fail a plan only if it has a stop that waits for them; else a warning."""
    if verdict.passed or verdict.name != guard.UNSEEN:
        return verdict
    if any(change.waits == verdict.message for change in draft.changes):
        return verdict
    draft.warnings.append(verdict.message)
    return replace(verdict, passed=True, message="")


def _summary(changes: Sequence[Change], holds: Sequence[Hold], counts: Tally) -> Summary:
    by = Counter(symbol for symbol, _ in {(c.symbol, c.address) for c in changes})
    touched = {c.address for c in changes} | {h.subject.removeprefix("replica ") for h in holds}
    changed = {f"replica {c.address}" for c in changes}
    calm = sum(r.wanted and r.replica not in touched for r in counts.odd)
    return Summary(
        start=by[Symbol.START],
        stop=by[Symbol.STOP],
        replace=by[Symbol.STOP_FIRST] + by[Symbol.START_FIRST],
        relabel=by[Symbol.RELABEL],
        unknown=by[Symbol.UNKNOWN],
        held=sum(not h.subject.startswith("guard ") and h.subject not in changed for h in holds),
        unchanged=counts.matching + calm,
    )
