"""What happens to one replica in this pass: the step now, or the reason why not yet.

Each function takes one replica and adds its changes, holds and steps to the `Draft`. Gates are
asked first, places next, budgets last, and a budget is spent only with the step that needs it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from reconciler.core import tidy
from reconciler.core.access import Access
from reconciler.core.changes import (
    Change,
    Hold,
    Reason,
    RelabelStep,
    Seat,
    Step,
    StopStep,
    Symbol,
)
from reconciler.core.fingerprint import fingerprint
from reconciler.core.gates import Gates
from reconciler.core.labels import LabelBook, same
from reconciler.core.model import Desired, NodeState
from reconciler.core.observed import ApprovedChange
from reconciler.core.rollout import Budget, Wait
from reconciler.core.starts import Going, Starter, rejected
from reconciler.core.tally import Tally, is_doomed, is_ready
from reconciler.core.verdict import JudgedLaunch, JudgedReplica, Verdict

CRASH_LOOP = 3
"""Failures in a row from which on a back-off is called a crash loop."""

_LIVE_OLD = (Verdict.STALE, Verdict.MISPLACED, Verdict.UNHEALTHY)


@dataclass
class Draft:
    """What a plan is put together from."""

    changes: list[Change] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    repairs: list[Step] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Parts:
    """What decisions lean on; all of it lives for one pass."""

    desired: Desired
    access: Access
    gates: Gates
    budget: Budget
    starter: Starter
    labels: LabelBook
    tally: Tally
    draft: Draft
    going: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Launches that end soon, by what was asked before or in this pass, with their nodes. Stuck
    ones do not."""
    freeing: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Those of them whose GPUs nobody has a claim on yet."""
    healing: set[str] = field(default_factory=set)
    """Models of which an unhealthy replica is being replaced, or any is in transition."""
    fingerprints: dict[str, str] = field(default_factory=dict)
    """Placement → fingerprint of today's profile."""
    surges: dict[str, bool] = field(default_factory=dict)
    """Placement → whether one more replica of it has a place now: symbols of what waits."""


# --- launches that are done for, and repairs -----------------------------------------------------


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
    stop, wait = _stop(parts, judged, voluntary=True)
    wait = wait or parts.gates.blind()
    if wait is None:
        parts.going[judged.view.launch] = judged.view.seen_nodes
        parts.freeing[judged.view.launch] = judged.view.seen_nodes
    _add(parts, replica, judged, Symbol.STOP, after="", steps=(stop,), wait=wait)


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


# --- replicas that are wanted and do not run -----------------------------------------------------


def start(parts: Parts, replica: JudgedReplica) -> None:
    """Place and start a replica of which nothing is left that could still serve."""
    hold = _not_startable(replica)
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
        _back_off(parts, replica, seats)
        return
    step = parts.starter.start(replica, seats)
    if isinstance(step, Hold):
        parts.draft.holds.append(step)
        return
    _add_start(parts, replica, seats, (step,), None)


def _not_startable(replica: JudgedReplica) -> Hold | None:
    """What forbids any start of it, whatever is free."""
    subject = f"replica {replica.replica}"
    if replica.blocked:
        return Hold(subject, Reason.PERHAPS_RUNNING, replica.blocked, replica.placement)
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


def _back_off(parts: Parts, replica: JudgedReplica, seats: Sequence[Seat]) -> None:
    """It keeps its seats meanwhile: a crash must not cost it its place."""
    parts.starter.reserve(replica, seats)
    backoff = replica.backoff
    reason = Reason.CRASH_LOOP if backoff.failures >= CRASH_LOOP else Reason.BACKOFF
    message = (
        f"{backoff.failures} failed starts; the next one in {backoff.remaining_s:.0f} s"
        f" (`reconcile retry {replica.replica}` starts it at once)"
    )
    _add_start(parts, replica, seats, (), (reason, message))
    parts.draft.holds.append(Hold(f"replica {replica.replica}", reason, message, replica.placement))


def _add_start(
    parts: Parts,
    replica: JudgedReplica,
    seats: Sequence[Seat],
    steps: tuple[Step, ...],
    wait: Wait | None,
) -> None:
    assert replica.effective is not None
    last = replica.launches[0] if replica.launches else None
    canary = "canary: " if replica.effective.canary else ""
    parts.draft.changes.append(
        Change(
            address=replica.replica,
            placement=replica.placement,
            symbol=Symbol.START,
            reason=canary + replica.reason,
            verdict=str(replica.verdict),
            changes=last.changes if last else (),
            before=last.view.fingerprint if last else "",
            after=replica.effective.fingerprint,
            before_seats=tidy.seats_of(last.view) if last else (),
            after_seats=tuple(seats),
            steps=steps,
            waits=wait[1] if wait else "",
            waits_for=wait[0] if wait else None,
            load_minutes=_load_minutes(replica),
        )
    )


# --- replicas that run and should run otherwise --------------------------------------------------


def replace(parts: Parts, replica: JudgedReplica, old: JudgedLaunch) -> None:
    """Give a replica with a live launch a new one: beside it where GPUs are free, else after it."""
    hold = _not_startable(replica)
    if hold:
        parts.draft.holds.append(hold)
        _add(parts, replica, old, Symbol.BLOCKED, wait=(hold.reason, hold.message))
        return
    change = approved_change(parts, replica, old)
    repair = not old.view.ready and old.verdict is not Verdict.UNHEALTHY
    wait = _why_not_now(parts, replica, old, change, repair)
    if wait is None and not repair:
        wait = parts.budget.replace(replica.replica)
    if wait:
        symbol = Symbol.START_FIRST if _could_surge(parts, replica) else Symbol.STOP_FIRST
        if wait[0] is Reason.SICK_TOGETHER:
            parts.draft.holds.append(
                Hold(f"replica {replica.replica}", wait[0], wait[1], replica.placement)
            )
        _add(parts, replica, old, symbol, wait=wait)
        return
    if repair:
        _replace_unready(parts, replica, old)
    elif parts.budget.surge(replica.placement) and _surge(parts, replica, old):
        return
    else:
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
        return Reason.BACKOFF, (
            f"{replica.backoff.failures} failed starts of its successor; the next one in"
            f" {replica.backoff.remaining_s:.0f} s"
        )
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
    stop, wait = _stop(parts, old, voluntary=False)
    if wait is None:
        parts.going[old.view.launch] = old.view.seen_nodes
        parts.starter.reserve(replica, seats)
    _add(parts, replica, old, Symbol.STOP_FIRST, seats=seats, steps=(stop,), wait=wait)


def _surge(parts: Parts, replica: JudgedReplica, old: JudgedLaunch) -> bool:
    """Start the successor beside it, if there is room now or soon; False: there is none."""
    seats = parts.starter.try_seats(replica)
    if seats is None:
        soon = _soon(parts, replica)
        if soon is None:
            return False
        wait = Reason.STOPPING, "the GPUs that its successor will get are being freed"
        parts.starter.reserve(replica, soon)
        _add(parts, replica, old, Symbol.START_FIRST, seats=soon, wait=wait)
        return True
    step = parts.starter.start(replica, seats)
    if isinstance(step, Hold):
        _blocked(parts, replica, old, step)
        return True
    parts.budget.spend_replace(replica.replica)
    parts.budget.spend_surge(replica.placement)
    if old.verdict is Verdict.UNHEALTHY:
        parts.healing.add(replica.model)
    _add(parts, replica, old, Symbol.START_FIRST, seats=seats, steps=(step,))
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
    stop, barred = _stop(parts, old, voluntary=True)
    wait = wait or barred
    if wait is None:
        if is_ready(replica):
            parts.budget.spend_stop(replica.placement, replica.model)
        parts.budget.spend_replace(replica.replica)
        parts.going[old.view.launch] = old.view.seen_nodes
        parts.starter.reserve(replica, seats)
        if old.verdict is Verdict.UNHEALTHY:
            parts.healing.add(replica.model)
    _add(parts, replica, old, Symbol.STOP_FIRST, seats=seats, steps=(stop,), wait=wait)


def _blocked(parts: Parts, replica: JudgedReplica, old: JudgedLaunch, hold: Hold) -> None:
    parts.draft.holds.append(hold)
    _add(parts, replica, old, Symbol.BLOCKED, wait=(hold.reason, hold.message))


def _could_surge(parts: Parts, replica: JudgedReplica) -> bool:
    """Whether one more replica of its placement has a place now; asked once per placement."""
    name = replica.placement
    if name not in parts.surges:
        can = parts.budget.surge(name) and parts.starter.try_seats(replica) is not None
        parts.surges[name] = can
    return parts.surges[name]


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
            reason=old.reason,
            verdict=str(replica.verdict),
            changes=old.changes,
            before=old.view.fingerprint,
            after=replica.effective.fingerprint,
            before_seats=tidy.seats_of(old.view),
            waits=wait,
            waits_for=reason,
            load_minutes=_load_minutes(replica),
        )
    )


def waiting_for_canary(parts: Parts, replica: JudgedReplica, live: JudgedLaunch) -> None:
    """It keeps what was last ready until another replica has proved today's profile."""
    assert replica.effective is not None
    live = dataclasses.replace(live, reason="its placement's profile was edited")
    wait = Reason.CANARY, replica.effective.reason or "another replica tries the new profile first"
    symbol = Symbol.START_FIRST if _could_surge(parts, replica) else Symbol.STOP_FIRST
    after = todays(parts, replica.placement)
    _add(parts, replica, live, symbol, after=after, wait=wait)


# --- replicas that nobody wants ------------------------------------------------------------------


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
        stop, barred = _stop(parts, judged, voluntary=True)
        closed = wait or barred
        if closed is None:
            parts.freeing[judged.view.launch] = judged.view.seen_nodes
            if ready:
                parts.budget.spend_stop(replica.placement, replica.model)
                ready = False
        _add(parts, replica, judged, Symbol.STOP, after="", steps=(stop,), wait=closed)


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


# --- labels --------------------------------------------------------------------------------------


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


# --- small parts ---------------------------------------------------------------------------------


def old_launch(replica: JudgedReplica) -> JudgedLaunch | None:
    """The live launch that a new one is to replace: the kept one, else the newest."""
    live = [j for j in replica.launches if j.verdict in _LIVE_OLD]
    for judged in live:
        if judged.view.launch == replica.kept:
            return judged
    return live[0] if live else None


def to_be_replaced(parts: Parts, replica: JudgedReplica) -> JudgedLaunch | None:
    """The live launch that today's revision replaces, now or after the canary; None: it stays."""
    if replica.effective is None:
        return None
    old = old_launch(replica)
    if old is not None:
        begun = bool(replica.current) and replica.current != old.view.launch
        return None if begun or old.verdict is Verdict.UNHEALTHY else old
    if replica.effective.waiting:
        for judged in replica.launches:
            if judged.verdict in (Verdict.MATCHING, Verdict.STARTING):
                stays = judged.view.fingerprint == todays(parts, replica.placement)
                return None if stays else judged
    return None


def with_gates(parts: Parts, gates: Gates) -> Parts:
    """The same parts behind other gates: guards are judged on what the parts know."""
    return dataclasses.replace(parts, gates=gates)


def launches_of(replica: JudgedReplica) -> Going:
    """All its launches, with their nodes."""
    return {j.view.launch: j.view.seen_nodes for j in replica.launches}


def approved_change(parts: Parts, replica: JudgedReplica, old: JudgedLaunch) -> ApprovedChange:
    """The replacement as guards count it and approvals store it."""
    assert replica.effective is not None
    after = replica.effective.fingerprint
    if replica.effective.waiting:
        after = todays(parts, replica.placement)
    return ApprovedChange(replica.replica, old.view.fingerprint, after)


def todays(parts: Parts, placement: str) -> str:
    """Fingerprint of the placement's profile as git has it today."""
    if placement not in parts.fingerprints:
        mine = parts.desired.placements[placement]
        parts.fingerprints[placement] = fingerprint(parts.desired.resolved(mine))
    return parts.fingerprints[placement]


def scope_of(replica: JudgedReplica) -> tuple[str, str]:
    """What guards count by."""
    return replica.model, replica.pool


def _stop(parts: Parts, judged: JudgedLaunch, *, voluntary: bool) -> tuple[StopStep, Wait | None]:
    view = judged.view
    nodes = tidy.nodes_of(view)
    step = StopStep(view.replica, view.launch, nodes, judged.reason, voluntary)
    return step, parts.access.why_not(nodes, view.launch)


def _add(
    parts: Parts,
    replica: JudgedReplica,
    judged: JudgedLaunch,
    symbol: Symbol,
    *,
    after: str | None = None,
    seats: Sequence[Seat] = (),
    steps: tuple[Step, ...] = (),
    wait: Wait | None = None,
) -> None:
    effective = replica.effective
    canary = "canary: " if effective and effective.canary and after is None else ""
    parts.draft.changes.append(
        Change(
            address=replica.replica,
            placement=replica.placement,
            symbol=symbol,
            reason=canary + judged.reason,
            verdict=str(judged.verdict),
            changes=judged.changes,
            before=judged.view.fingerprint,
            after=after if after is not None else (effective.fingerprint if effective else ""),
            before_seats=tidy.seats_of(judged.view),
            after_seats=tuple(seats),
            steps=() if wait else steps,
            waits=wait[1] if wait else "",
            waits_for=wait[0] if wait else None,
            load_minutes=0 if symbol is Symbol.STOP else _load_minutes(replica),
        )
    )


def _load_minutes(replica: JudgedReplica) -> int:
    profile = replica.effective.profile if replica.effective else None
    return profile.model.facts.load_minutes if profile else 0
