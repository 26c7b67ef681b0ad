"""Replicas that are wanted and do not run: placed and started, or held with the reason.

A replica keeps its claim on a place while it waits (back-off, its own launches that are ending), so
that a crash does not cost it its GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.core import tidy
from reconciler.core.changes import Change, Hold, Reason, Seat, Step, Symbol
from reconciler.core.parts import Parts, launches_of, load_minutes, todays
from reconciler.core.rollout import Wait
from reconciler.core.starts import Going, rejected
from reconciler.core.verdict import JudgedReplica, Verdict
from reconciler.core.words import plural

CRASH_LOOP = 3
"""Failures in a row from which on a back-off is called a crash loop."""

_OUT_OF_REACH = {
    Verdict.UNREACHABLE: Reason.NODE_UNREACHABLE,
    Verdict.UNKNOWN: Reason.UNKNOWN_FINGERPRINT,
}
"""A launch of the replica that may be running: with a second one there would be two."""


def start(parts: Parts, replica: JudgedReplica) -> None:
    """Place and start a replica of which nothing is left that could still serve."""
    hold = not_startable(replica)
    if hold:
        parts.draft.holds.append(hold)
        return
    own = {n: where for n, where in launches_of(replica).items() if n in parts.going}
    seats = parts.starter.seats(replica, without=own)
    if isinstance(seats, Hold):
        parts.draft.holds.append(seats)
        return
    if own and not _clear(parts, replica, own, seats):
        parts.starter.reserve(replica, seats)
        wait = Reason.STOPPING, f"{' and '.join(sorted(own))} must have ended first"
        _add_start(parts, replica, seats, (), wait)
        return
    wait_s = replica.backoff.remaining_s
    if wait_s > 0:
        # It keeps its seats meanwhile: a crash must not cost it its place.
        parts.starter.reserve(replica, seats)
        reason, message = back_off(replica)
        _add_start(parts, replica, seats, (), (reason, message))
        subject = f"replica {replica.replica}"
        parts.draft.holds.append(Hold(subject, reason, message, replica.placement))
        return
    step = parts.starter.start(replica, seats)
    if isinstance(step, Hold):
        parts.draft.holds.append(step)
        return
    _add_start(parts, replica, seats, (step,), None)


def not_startable(replica: JudgedReplica) -> Hold | None:
    """What forbids any start of it, whatever is free."""
    subject = f"replica {replica.replica}"
    if replica.blocked:
        return Hold(subject, Reason.PERHAPS_RUNNING, replica.blocked, replica.placement)
    for judged in replica.launches:
        if judged.verdict in _OUT_OF_REACH:
            reason = _OUT_OF_REACH[judged.verdict]
            return Hold(subject, reason, judged.reason, replica.placement)
    if replica.effective is None or replica.effective.profile is None:
        return rejected(replica)
    return None


def _clear(parts: Parts, replica: JudgedReplica, own: Going, seats: Sequence[Seat]) -> bool:
    """Whether the seats are free although launches of the replica itself are still ending.

    Without GPUs nothing tells whether they are out of each other's way: then it waits where
    both would be on one node.
    """
    if not parts.starter.free_now(seats):
        return False
    if all(seat.gpus for seat in seats):
        return True
    busy = {node for nodes in own.values() for node in nodes}
    return busy.isdisjoint(seat.node for seat in seats)


def back_off(replica: JudgedReplica) -> Wait:
    """How long it waits for its next start, after how many that failed."""
    failures = replica.backoff.failures
    # One that was ready and crashed counts, too; no start of it failed.
    served = any(launch.failed and launch.view.ever_ready for launch in replica.launches)
    starts = plural(failures, "failure" if served else "failed start")
    return Reason.CRASH_LOOP if failures >= CRASH_LOOP else Reason.BACKOFF, (
        f"{starts}; the next start in {replica.backoff.remaining_s:.0f} s"
        f" (`reconcile retry {replica.placement}` starts it at once)"
    )


def _add_start(
    parts: Parts,
    replica: JudgedReplica,
    seats: Sequence[Seat],
    steps: tuple[Step, ...],
    wait: Wait | None,
) -> None:
    assert replica.effective is not None
    last = replica.launches[0] if replica.launches else None
    canary = "goes first (canary): " if replica.effective.canary else ""
    older = _older(parts, replica)
    parts.draft.changes.append(
        Change(
            address=replica.replica,
            placement=replica.placement,
            symbol=Symbol.START,
            reason=canary + replica.reason + older,
            verdict=str(replica.verdict),
            changes=last.changes if last else (),
            before=last.view.fingerprint if last else "",
            after=replica.effective.fingerprint,
            before_seats=tidy.seats_of(last.view) if last else (),
            after_seats=tuple(seats),
            steps=steps,
            waits=wait[1] if wait else "",
            waits_for=wait[0] if wait else None,
            load_minutes=load_minutes(replica),
        )
    )


def _older(parts: Parts, replica: JudgedReplica) -> str:
    """That it starts with another profile than git's, and why: nobody must find out afterwards."""
    effective = replica.effective
    if effective is None or not (effective.waiting or effective.rejected):
        return ""
    if effective.fingerprint == todays(parts, replica.placement):
        return ""
    return f"; starts with an older profile, the last that was ready ({effective.reason})"
