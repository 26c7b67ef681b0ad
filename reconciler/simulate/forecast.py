"""A rollout played forward in virtual time: the same diff and plan, over a fleet as it was seen.

`forecast` makes pass after pass until everything wanted runs, nothing more can change, or a limit
is reached. What it takes for granted is in `Assumptions`; what it cannot know is in
`Forecast.notes`, so that a forecast is never read as a promise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import Any

from reconciler.core.changes import Symbol
from reconciler.core.fingerprint import fingerprint
from reconciler.core.guard import approvable
from reconciler.core.model import PER_NODE, Desired, Revision
from reconciler.core.observed import ApprovedChange, Observed
from reconciler.core.verdict import JudgedReplica, Verdict
from reconciler.core.words import one_or
from reconciler.simulate.engine import NEVER, Behaviour, of_sim_engine
from reconciler.simulate.fleet import SimFleet
from reconciler.simulate.history import Capacity, Event, Held, History, What
from reconciler.simulate.reconciler import Pass, SimReconciler
from reconciler.simulate.seen import fleet_as_seen, kept

OWNER = "forecast"
SIM = "sim"
MAX_PASSES = 5_000
MOST_WORK = 1_500_000
"""Passes times processes and nodes, all of which each pass looks at: what a pull request asks for
must end. About a minute of computing; a rollout over 1,000 replicas has room for 1,000 passes."""
FEWEST_PASSES = 20
STILL_S = 1_800.0
"""Nothing has been seen to be due: one look this much later, for what waits on its own clock (a
probe under a brake, the longest back-off)."""
NOTES = 12
"""Nodes and launches that are named one by one; of more, the rest is counted."""


@dataclass(frozen=True)
class Assumptions:
    """What is taken for granted."""

    load_s: float = 300.0
    """Load time of models whose facts do not say; never above half of the start timeout."""
    limit_s: float = 86_400.0
    """Virtual seconds after which the forecast ends unfinished."""
    failing: frozenset[str] = frozenset()
    """Profiles whose launches crash at the end of their load: a wrong commit, rehearsed."""
    most_work: int = MOST_WORK
    """Passes times processes and nodes after which it ends unfinished."""
    approved: bool = False
    """Whatever a guard or `update: manual` holds is let through, as by `reconcile approve`."""


class Outcome(StrEnum):
    """How it ends."""

    CONVERGED = "converged"
    HELD = "held"
    """Nothing more can change without a person, and something wanted is not done."""
    UNFINISHED = "unfinished"
    """The limit came first."""


@dataclass(frozen=True)
class Forecast:
    """The whole of it, as a value."""

    revision: Revision
    outcome: Outcome
    took_s: float
    """When the last thing happened."""
    events: tuple[Event, ...] = ()
    capacity: tuple[Capacity, ...] = ()
    held: tuple[Held, ...] = ()
    notes: tuple[str, ...] = ()
    passes: int = 0

    @property
    def standing(self) -> tuple[Held, ...]:
        """What is held at the end."""
        return tuple(h for h in self.held if h.until_s is None)


def forecast(desired: Desired, observed: Observed, given: Assumptions) -> Forecast:
    """Plays `desired` forward from `observed`. Reads nothing and acts on nothing but its values."""
    engines = Engines(desired, given)
    fleet = fleet_as_seen(desired, observed, engines.behave)
    numbers = count()
    reconciler = SimReconciler(fleet, OWNER, lambda: f"f{next(numbers)}")
    history = History(fleet)
    approvals: tuple[ApprovedChange, ...] = ()
    outcome, still, passes = Outcome.UNFINISHED, False, 0
    began, most = fleet.clock.now, _most_passes(desired, given.most_work)
    while passes < most and fleet.clock.now - began <= given.limit_s:
        made = _one_pass(reconciler, desired, approvals or None)
        passes += 1
        history.record(made)
        if is_converged(made):
            outcome = Outcome.CONVERGED
            break
        more = approvable(made.plan) if given.approved else ()
        let_through = tuple(dict.fromkeys((*approvals, *more)))
        moved = any(code == "done" for _, code in made.done) or let_through != approvals
        approvals = let_through
        due_s = _next_due(fleet, made)
        if still and not moved and due_s == NEVER:
            outcome = Outcome.HELD
            break
        still = not moved and due_s == NEVER
        pause_s = float(desired.fleet.interval_s)
        if still:
            pause_s = STILL_S
        elif not moved:
            pause_s *= max(1.0, math.ceil(due_s / pause_s))
        # The last pass looks at the limit itself; one interval beyond it nothing is told.
        left_s = given.limit_s - (fleet.clock.now - began)
        pause_s = min(pause_s, max(left_s, 1.0))
        fleet.advance(pause_s)
        history.lived_through()
    return Forecast(
        revision=desired.revision,
        outcome=outcome,
        took_s=history.last_s,
        events=history.told(),
        capacity=history.capacity(),
        held=history.held(),
        notes=(
            *([_cut_short(passes)] if outcome is Outcome.UNFINISHED and passes >= most else []),
            *_unknowns(desired, observed, fleet),
            *engines.notes(_loading(desired, history.told())),
        ),
        passes=passes,
    )


def _most_passes(desired: Desired, most_work: int) -> int:
    wanted = (
        (p, len(desired.nodes) if p.replicas == PER_NODE else int(p.replicas))
        for p in desired.placements.values()
    )
    processes = sum(n * desired.resolved(p).profile.nodes for p, n in wanted)
    return min(MAX_PASSES, max(FEWEST_PASSES, most_work // (processes + len(desired.nodes) + 1)))


def _cut_short(passes: int) -> str:
    return (
        f"it was cut short after {passes} passes, which for a fleet of this size is all that is"
        " computed; the rollout itself would go on"
    )


def _loading(desired: Desired, events: Iterable[Event]) -> set[str]:
    """Models of which a replica starts or gets ready."""
    named = {e.placement for e in events if e.what in (What.START, What.READY, What.FAILED)}
    placements = (p for p in desired.placements.values() if p.name in named)
    return {desired.resolved(placement).model.name for placement in placements}


def _one_pass(
    reconciler: SimReconciler, desired: Desired, approvals: tuple[ApprovedChange, ...] | None
) -> Pass:
    running = reconciler.run(desired, approvals=approvals)
    while True:
        try:
            next(running)
        except StopIteration as stop:
            made: Pass = stop.value
            return made


def is_converged(made: Pass) -> bool:
    """Everything wanted is ready as wanted, nothing is left to do, and nothing is held."""
    plan = made.plan
    if plan.steps or plan.holds or any(c.symbol is not Symbol.UNKNOWN for c in plan.changes):
        return False
    return all(_is_settled(made.desired, r) for r in made.diff.replicas)


def _is_settled(desired: Desired, replica: JudgedReplica) -> bool:
    if any(j.verdict is Verdict.STOPPING for j in replica.launches):
        return False
    placement = desired.placements.get(replica.placement)
    if not replica.wanted or placement is None:
        return False
    return replica.ready or placement.suspend


# --- When something can change again --------------------------------------------------------------


def _next_due(fleet: SimFleet, made: Pass) -> float:
    """Seconds until something changes by itself; NEVER where nothing is known to."""
    now = fleet.clock.now
    dues = [s.next_due(now) - now for node in fleet.nodes.values() for s in node.launches.values()]
    held = [n.hold for n in fleet.nodes.values() if n.hold is not None]
    dues += [float(made.desired.fleet.interval_s) for h in held if h.remaining_s is not None]
    for replica in made.diff.replicas:
        dues += _own_dues(made.desired, replica)
    return min((d for d in dues if d > 0), default=NEVER)


def _own_dues(desired: Desired, replica: JudgedReplica) -> list[float]:
    placement = desired.placements.get(replica.placement)
    dues = [replica.backoff.remaining_s]
    for judged in replica.launches:
        for shard in judged.view.shards.values():
            failing = shard.health.failing_for_s
            if shard.alive and failing:
                dues.append(desired.fleet.unhealthy_after_s - failing)
            elif placement is not None and shard.health.ok:
                dues.append(placement.rollout.ready_for_s - shard.health.ready_for_s)
    return dues


# --- What engines do ------------------------------------------------------------------------------


@dataclass
class Engines:
    """How launches do, by what the fleet repo says of their models."""

    desired: Desired
    given: Assumptions
    assumed: set[str] = field(default_factory=set)
    """Models whose load time nobody has written down."""

    def __post_init__(self) -> None:
        resolved = map(self.desired.resolved, self.desired.placements.values())
        self._failing = {fingerprint(r) for r in resolved if r.profile.name in self.given.failing}

    def behave(self, spec: Mapping[str, Any]) -> Behaviour:
        """Load, drain and stop times of what is started from a spec.

        Drain and grace are taken in full: what is asked to stop may take as long, not longer.
        """
        profile, model = _named(spec, "profile"), _named(spec, "model")
        load_s = self._load_s(str(model.get("name", "")), spec)
        made = Behaviour(load_s=load_s)
        if profile.get("engine") == SIM:
            made = of_sim_engine(spec, load_s=0.0)
        if spec.get("fingerprint") in self._failing:
            made = Behaviour(load_s=NEVER, crash_s=load_s, log=("assumed to fail",))
        return Behaviour(
            load_s=made.load_s,
            crash_s=made.crash_s,
            code=made.code,
            log=made.log,
            stop_s=float(spec.get("stop_grace_s", 0.0)),
            in_flight_s=NEVER,
        )

    def _load_s(self, name: str, spec: Mapping[str, Any]) -> float:
        model = self.desired.models.get(name)
        if model is not None and model.facts.load_minutes:
            return 60.0 * model.facts.load_minutes
        if _named(spec, "profile").get("engine") != SIM:
            self.assumed.add(name)
        return min(self.given.load_s, float(spec["start_timeout_s"]) / 2)

    def notes(self, loading: set[str]) -> list[str]:
        """What was assumed of the models that are loaded on the way; of others it does not tell."""
        assumed = sorted(self.assumed & loading)
        if not assumed:
            return []
        names = ", ".join(assumed[:NOTES])
        return [
            f"load time assumed ({self.given.load_s:.0f} s at most): {names};"
            " write `facts.load_minutes` into the Model"
        ]


def _named(spec: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    resolved = spec.get("profile")
    found = resolved.get(part) if isinstance(resolved, Mapping) else None
    return found if isinstance(found, Mapping) else {}


# --- What cannot be known -------------------------------------------------------------------------


def _unknowns(desired: Desired, observed: Observed, fleet: SimFleet) -> list[str]:
    notes = [
        f"node {name} {_why_silent(observed, name)}: what it holds stays as it is"
        for name in sorted({*fleet.given, *(desired.nodes.keys() - fleet.nodes.keys())})
        if name not in desired.nodes or desired.nodes[name].state != "lost"
    ]
    notes += [
        f"launch {k.launch} on {k.node} stays as it is: {k.why}"
        for k in kept(desired, observed, fleet)
    ]
    left = len(notes) - NOTES
    if left > 0:
        more = one_or(left, "1 more stays as it is", f"{left} more stay as they are")
        notes = [*notes[:NOTES], more]
    owners = {
        lease.owner
        for look in observed.nodes.values()
        if look.answer and (lease := look.answer.lease) and lease.remaining_s > 0
        if lease.fleet == desired.fleet.id and lease.owner != observed.owner
    }
    if owners:
        notes.append(f"{' and '.join(sorted(owners))} leads nodes now; leases are left out here")
    return notes


def _why_silent(observed: Observed, name: str) -> str:
    look = observed.nodes.get(name)
    if look is None:
        return "is not in the observation"
    if look.answer is not None:
        return "cannot be told from another, or not read whole"
    return f"gave no answer ({look.error or 'unknown'})"
