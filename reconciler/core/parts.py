"""What the decisions about replicas lean on, and the few things that all of them do.

A pass makes one `Parts`; decisions add to its `Draft`. Nothing in here chooses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from reconciler.core import tidy
from reconciler.core.access import Access
from reconciler.core.changes import Change, Hold, Seat, Step, StopStep, Symbol
from reconciler.core.fingerprint import fingerprint
from reconciler.core.gates import Gates
from reconciler.core.labels import LabelBook
from reconciler.core.model import Desired
from reconciler.core.observed import ApprovedChange
from reconciler.core.rollout import Budget, Wait
from reconciler.core.starts import Going, Starter
from reconciler.core.verdict import JudgedLaunch, JudgedReplica, Verdict
from reconciler.core.verdicts import without_fields

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


def with_gates(parts: Parts, gates: Gates) -> Parts:
    """The same parts behind other gates: guards are judged on what the parts know."""
    return dataclasses.replace(parts, gates=gates)


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


def could_surge(parts: Parts, replica: JudgedReplica) -> bool:
    """Whether one more replica of its placement has a place now; asked once per placement."""
    name = replica.placement
    if name not in parts.surges:
        can = parts.budget.may_surge(name) and parts.starter.try_seats(replica) is not None
        parts.surges[name] = can
    return parts.surges[name]


def stop_step(
    parts: Parts, judged: JudgedLaunch, *, voluntary: bool
) -> tuple[StopStep, Wait | None]:
    view = judged.view
    nodes = tidy.nodes_of(view)
    step = StopStep(view.replica, view.launch, nodes, judged.reason, voluntary)
    return step, parts.access.why_not(nodes, view.launch)


def add_change(
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
    canary = "goes first (canary): " if effective and effective.canary and after is None else ""
    parts.draft.changes.append(
        Change(
            address=replica.replica,
            placement=replica.placement,
            symbol=symbol,
            reason=canary + without_fields(judged.reason, judged.changes),
            verdict=str(judged.verdict),
            changes=judged.changes,
            before=judged.view.fingerprint,
            after=after if after is not None else (effective.fingerprint if effective else ""),
            before_seats=tidy.seats_of(judged.view),
            after_seats=tuple(seats),
            steps=() if wait else steps,
            waits=wait[1] if wait else "",
            waits_for=wait[0] if wait else None,
            load_minutes=0 if symbol is Symbol.STOP else load_minutes(replica),
        )
    )


def load_minutes(replica: JudgedReplica) -> int:
    profile = replica.effective.profile if replica.effective else None
    return profile.model.facts.load_minutes if profile else 0
