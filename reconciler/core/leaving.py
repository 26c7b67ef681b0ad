"""Launches that end: superseded ones, those that nobody wants, and those that may not be touched.

A launch that a better one has replaced needs no budget; a replica that nobody wants counts for the
guard and for the limits; what is unknown or out of sight is told and left alone.
"""

from __future__ import annotations

from reconciler.core import tidy
from reconciler.core.changes import Change, Hold, Reason, RelabelStep, Symbol
from reconciler.core.labels import same
from reconciler.core.parts import Parts, add_change, scope_of, stop_step
from reconciler.core.tally import is_doomed, is_ready
from reconciler.core.verdict import JudgedLaunch, JudgedReplica, Verdict


def tidy_up(parts: Parts, replica: JudgedReplica) -> None:
    """Adopt, sweep, finish stops, and stop what a better launch has replaced."""
    for judged in replica.launches:
        parts.draft.repairs += tidy.repairs(judged, parts.access)
        if judged.verdict is Verdict.STOPPING:
            _stopping(parts, replica, judged)
        elif judged.verdict in (Verdict.EXITED, Verdict.TIMED_OUT):
            if tidy.has_leftovers(judged.view):
                parts.going[judged.view.launch] = judged.view.seen_nodes
        elif judged.verdict is Verdict.SURPLUS and not judged.not_wanted:
            _supersede(parts, replica, judged)
        elif judged.verdict is Verdict.UNKNOWN:
            unknown(parts, replica.replica, replica.placement, judged)


def _stopping(parts: Parts, replica: JudgedReplica, judged: JudgedLaunch) -> None:
    if not judged.stuck:
        parts.going[judged.view.launch] = judged.view.seen_nodes
        if not replica.wanted or replica.current:
            parts.freeing[judged.view.launch] = judged.view.seen_nodes
        return
    pids = sorted(pid for shard in judged.view.shards.values() for pid in shard.pids)
    parts.draft.holds.append(
        Hold(
            subject=f"launch {judged.view.launch}",
            reason=Reason.STUCK,
            message=f"{judged.reason or 'still alive after its grace'}; pids"
            f" {', '.join(map(str, pids)) or 'unknown'} on {', '.join(judged.view.seen_nodes)}",
            placement=replica.placement,
        )
    )


def _supersede(parts: Parts, replica: JudgedReplica, judged: JudgedLaunch) -> None:
    """The replica has a better launch, so no budget is asked; finishing is no new change, so
    neither freeze nor guard hold it."""
    stop, wait = stop_step(parts, judged, voluntary=True)
    wait = wait or parts.gates.blind()
    if wait is None:
        parts.going[judged.view.launch] = judged.view.seen_nodes
        parts.freeing[judged.view.launch] = judged.view.seen_nodes
    add_change(parts, replica, judged, Symbol.STOP, after="", steps=(stop,), wait=wait)


def unknown(parts: Parts, subject: str, placement: str, judged: JudgedLaunch) -> None:
    """Kept, flagged, never touched unasked."""
    launch = judged.view.launch
    where = ", ".join(judged.view.seen_nodes) or "an unknown node"
    parts.draft.holds.append(
        Hold(
            subject=f"launch {launch}",
            reason=Reason.UNKNOWN_FINGERPRINT,
            message=f"{judged.reason} (on {where}); it is left alone until"
            f" `reconcile stop {launch}` or a repaired record",
            placement=placement,
        )
    )
    parts.draft.changes.append(
        Change(
            address=subject,
            placement=placement,
            symbol=Symbol.UNKNOWN,
            reason=judged.reason,
            verdict=str(judged.verdict),
            before=judged.view.fingerprint,
            after=judged.view.fingerprint,
            before_seats=tidy.seats_of(judged.view),
            waits="a person has to say what it is",
            waits_for=Reason.UNKNOWN_FINGERPRINT,
        )
    )


def remove(parts: Parts, replica: JudgedReplica) -> None:
    """Stop all that is left of a replica that is not wanted, or is suspended."""
    doomed = [j for j in replica.launches if is_doomed(j)]
    for judged in replica.launches:
        if judged.verdict is Verdict.UNREACHABLE:
            unreachable(parts, replica, judged)
    if not doomed:
        return
    wait = parts.gates.remove(replica, scope_of(replica))
    ready = is_ready(replica)
    if wait is None and ready:
        wait = parts.budget.stop(replica.placement, replica.model)
    for judged in doomed:
        stop, barred = stop_step(parts, judged, voluntary=True)
        closed = wait or barred
        if closed is None:
            parts.freeing[judged.view.launch] = judged.view.seen_nodes
            if ready:
                parts.budget.spend_stop(replica.placement, replica.model)
                ready = False
        add_change(parts, replica, judged, Symbol.STOP, after="", steps=(stop,), wait=closed)


def unreachable(parts: Parts, replica: JudgedReplica, judged: JudgedLaunch | None) -> None:
    """Neither started elsewhere nor counted as stopped."""
    parts.draft.holds.append(
        Hold(
            subject=f"replica {replica.replica}",
            reason=Reason.NODE_UNREACHABLE,
            message=(judged.reason if judged else replica.reason) or "a node of it did not answer",
            placement=replica.placement,
        )
    )


def relabel(parts: Parts, replica: JudgedReplica) -> None:
    """Write what may change without a restart, and a rename, beside the launches."""
    labels = parts.labels.of(replica.placement, replica.replica, replica.ordinal)
    for judged in replica.launches:
        view = judged.view
        if judged.verdict in (Verdict.UNREACHABLE, Verdict.UNKNOWN, Verdict.STOPPING):
            continue
        if not (view.alive or replica.renamed_from):
            continue
        if all(s.labels and same(s.labels, labels) for s in view.shards.values()):
            continue
        step = RelabelStep(replica.replica, view.launch, tidy.nodes_of(view), labels)
        wait = parts.access.why_not(step.nodes, view.launch)
        if not view.alive:
            # Its history goes with it: without a line, since nothing runs under either name.
            parts.draft.repairs += [] if wait else [step]
            continue
        renamed = replica.renamed_from
        parts.draft.changes.append(
            Change(
                address=replica.replica,
                placement=replica.placement,
                symbol=Symbol.RELABEL,
                reason=f"renamed from {renamed}" if renamed else "labels or owner changed",
                verdict=str(judged.verdict),
                before=view.fingerprint,
                after=view.fingerprint,
                before_seats=tidy.seats_of(view),
                after_seats=tidy.seats_of(view),
                steps=() if wait else (step,),
                waits=wait[1] if wait else "",
                waits_for=wait[0] if wait else None,
            )
        )
