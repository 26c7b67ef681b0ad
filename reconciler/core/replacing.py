"""Replicas that run and should run otherwise: a new launch beside the old one, or after it.

Gates are asked first, places next, budgets last, and a budget is spent only with the step that
needs it. A ready launch is never stopped for a successor that has no place.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from reconciler.core import tidy
from reconciler.core.changes import Change, Hold, Reason, Seat, Symbol
from reconciler.core.model import NodeState
from reconciler.core.observed import ApprovedChange
from reconciler.core.parts import (
    Parts,
    add_change,
    approved_change,
    could_surge,
    launches_of,
    load_minutes,
    scope_of,
    stop_step,
    todays,
)
from reconciler.core.rollout import Wait
from reconciler.core.starting import back_off, not_startable
from reconciler.core.tally import is_ready
from reconciler.core.verdict import JudgedLaunch, JudgedReplica, Verdict
from reconciler.core.verdicts import without_fields


def replace(parts: Parts, replica: JudgedReplica, old: JudgedLaunch) -> None:
    """Give a replica with a live launch a new one: beside it where GPUs are free, else after it."""
    hold = not_startable(replica)
    if hold:
        parts.draft.holds.append(hold)
        add_change(parts, replica, old, Symbol.BLOCKED, wait=(hold.reason, hold.message))
        return
    change = approved_change(parts, replica, old)
    repair = not old.view.ready and old.verdict is not Verdict.UNHEALTHY
    wait = _why_not_now(parts, replica, old, change, repair)
    if wait is None and not repair:
        wait = parts.budget.replace(replica.replica)
    if wait:
        symbol = Symbol.START_FIRST if could_surge(parts, replica) else Symbol.STOP_FIRST
        if wait[0] in (Reason.SICK_TOGETHER, Reason.CRASH_LOOP):
            parts.draft.holds.append(
                Hold(f"replica {replica.replica}", wait[0], wait[1], replica.placement)
            )
        held = replica.effective is not None and replica.effective.held
        add_change(parts, replica, old, symbol, after=change.after if held else None, wait=wait)
        return
    if repair:
        _replace_unready(parts, replica, old)
        return
    begun = parts.budget.surge(replica.placement)
    if begun:
        # Where others of its placement start beside their successors it waits for its turn:
        # stopping it first meanwhile would cost capacity that GPUs are free for.
        add_change(parts, replica, old, Symbol.START_FIRST, wait=begun)
    elif not (parts.budget.may_surge(replica.placement) and _surge(parts, replica, old)):
        _stop_first(parts, replica, old)


def _why_not_now(
    parts: Parts,
    replica: JudgedReplica,
    old: JudgedLaunch,
    change: ApprovedChange,
    repair: bool,
) -> Wait | None:
    """The first thing that stands in the way beside budgets."""
    view = old.view
    barred = parts.access.why_not(view.seen_nodes, view.launch)
    if barred:
        return barred
    if tidy.is_orphaned(view):
        return (
            Reason.STOPPING,
            f"{view.launch} gets a new supervisor first: its health is not known",
        )
    ending = launches_of(replica).keys() & parts.going.keys()
    if ending:
        return Reason.STOPPING, f"{' and '.join(sorted(ending))} must have ended first"
    if repair:
        wait = parts.gates.update(replica.placement, change)
    else:
        wait = parts.gates.replace(replica, old, change, scope_of(replica))
    if wait:
        return wait
    if replica.backoff.remaining_s > 0:
        return back_off(replica)
    if old.verdict is Verdict.UNHEALTHY and replica.model in parts.healing:
        return Reason.MAX_UNAVAILABLE, (
            f"unhealthy replicas of model {replica.model} are replaced one at a time"
        )
    return None


def _replace_unready(parts: Parts, replica: JudgedReplica, old: JudgedLaunch) -> None:
    """It serves nobody, so it is stopped at once, if only its successor has a place then."""
    seats = parts.starter.seats(replica, without={**parts.freeing, **launches_of(replica)})
    if isinstance(seats, Hold):
        _blocked(parts, replica, old, seats)
        return
    stop, wait = stop_step(parts, old, voluntary=False)
    if wait is None:
        parts.going[old.view.launch] = old.view.seen_nodes
        parts.starter.reserve(replica, seats)
    add_change(parts, replica, old, Symbol.STOP_FIRST, seats=seats, steps=(stop,), wait=wait)


def _surge(parts: Parts, replica: JudgedReplica, old: JudgedLaunch) -> bool:
    """Start the successor beside it, if there is room now or soon; False: there is none."""
    seats = parts.starter.try_seats(replica)
    if seats is None:
        soon = _soon(parts, replica)
        if soon is None:
            return False
        wait = Reason.STOPPING, "the GPUs that its successor will get are being freed"
        parts.starter.reserve(replica, soon)
        parts.budget.spend_surge(replica.placement)
        add_change(parts, replica, old, Symbol.START_FIRST, seats=soon, wait=wait)
        return True
    step = parts.starter.start(replica, seats)
    if isinstance(step, Hold):
        _blocked(parts, replica, old, step)
        return True
    parts.budget.spend_replace(replica.replica)
    parts.budget.spend_surge(replica.placement)
    if old.verdict is Verdict.UNHEALTHY:
        parts.healing.add(replica.model)
    add_change(parts, replica, old, Symbol.START_FIRST, seats=seats, steps=(step,))
    return True


def _soon(parts: Parts, replica: JudgedReplica) -> Sequence[Seat] | None:
    """Where its successor could go once all that is ending has ended."""
    if not parts.freeing:
        return None
    return parts.starter.try_seats(replica, without=parts.freeing)


def _stop_first(parts: Parts, replica: JudgedReplica, old: JudgedLaunch) -> None:
    """No room beside it: stop it, if its successor has a place then and the model can spare it."""
    seats = parts.starter.seats(replica, without=launches_of(replica))
    if isinstance(seats, Hold):
        _blocked(parts, replica, old, seats)
        return
    nodes = parts.desired.nodes
    lost = [n for n in old.view.seen_nodes if nodes[n].state is NodeState.LOST]
    if lost:
        # What a lost node turns out to run is kept until its successor serves.
        message = f"{lost[0]} was lost and answers again; kept until its successor is ready"
        hold = Hold(f"replica {replica.replica}", Reason.NO_CAPACITY, message, replica.placement)
        _blocked(parts, replica, old, hold)
        return
    wait = None
    if is_ready(replica):
        wait = parts.budget.stop(replica.placement, replica.model)
    if wait and not parts.freeing:
        _never(parts, replica)
    stop, barred = stop_step(parts, old, voluntary=True)
    wait = wait or barred
    if wait is None:
        check = parts.starter.rehearse(replica, seats)
        if isinstance(check, Hold):
            _blocked(parts, replica, old, check)
            return
        stop = dataclasses.replace(stop, check=check)
        if is_ready(replica):
            parts.budget.spend_stop(replica.placement, replica.model)
        parts.budget.spend_replace(replica.replica)
        parts.going[old.view.launch] = old.view.seen_nodes
        parts.starter.reserve(replica, seats)
        if old.verdict is Verdict.UNHEALTHY:
            parts.healing.add(replica.model)
    add_change(parts, replica, old, Symbol.STOP_FIRST, seats=seats, steps=(stop,), wait=wait)


def _never(parts: Parts, replica: JudgedReplica) -> None:
    """Nothing may be stopped first and nothing fits beside it: no later pass would do better.

    Said once for a placement, with what is missing.
    """
    rollout = parts.desired.placements[replica.placement].rollout
    subject = f"placement {replica.placement}"
    if rollout.max_unavailable or any(h.subject == subject for h in parts.draft.holds):
        return
    message = (
        "no ready replica may be stopped first (max_unavailable 0), and a successor beside it"
        f" lacks {parts.starter.lacking(replica)}"
    )
    parts.draft.holds.append(Hold(subject, Reason.NO_CAPACITY, message, replica.placement))


def _blocked(parts: Parts, replica: JudgedReplica, old: JudgedLaunch, hold: Hold) -> None:
    parts.draft.holds.append(hold)
    add_change(parts, replica, old, Symbol.BLOCKED, wait=(hold.reason, hold.message))


def under_way(parts: Parts, replica: JudgedReplica, old: JudgedLaunch, current: str) -> None:
    """The successor is starting; the old launch is stopped once that is ready."""
    assert replica.effective is not None
    reason = Reason.CANARY if replica.effective.canary else None
    wait = f"{current} is starting; {old.view.launch} is stopped when that is ready"
    parts.draft.changes.append(
        Change(
            address=replica.replica,
            placement=replica.placement,
            symbol=Symbol.START_FIRST,
            reason=without_fields(old.reason, old.changes),
            verdict=str(replica.verdict),
            changes=old.changes,
            before=old.view.fingerprint,
            after=replica.effective.fingerprint,
            before_seats=tidy.seats_of(old.view),
            waits=wait,
            waits_for=reason,
            load_minutes=load_minutes(replica),
        )
    )


def waiting_for_canary(parts: Parts, replica: JudgedReplica, live: JudgedLaunch) -> None:
    """It keeps what was last ready until another replica has proved today's profile, or for as
    long as people hold the change."""
    assert replica.effective is not None
    live = dataclasses.replace(live, verdict=Verdict.STALE, reason="the profile was edited")
    reason = Reason(replica.effective.held) if replica.effective.held else Reason.CANARY
    wait = reason, replica.effective.reason or "another replica tries the new profile first"
    symbol = Symbol.START_FIRST if could_surge(parts, replica) else Symbol.STOP_FIRST
    after = todays(parts, replica.placement)
    add_change(parts, replica, live, symbol, after=after, wait=wait)
