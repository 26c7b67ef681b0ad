"""What happens in a forecast, as people are told it: events, capacity on the way, what is held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from reconciler.core.changes import (
    Change,
    Reason,
    RelabelStep,
    Seat,
    StartStep,
    Step,
    StopStep,
)
from reconciler.core.observed import ExitKind
from reconciler.core.verdict import JudgedReplica
from reconciler.simulate.engine import Shardlet
from reconciler.simulate.fleet import SimFleet
from reconciler.simulate.reconciler import Pass

IN_PASSING = frozenset(
    {
        Reason.CANARY,
        Reason.MAX_UNAVAILABLE,
        Reason.MAX_PARALLEL,
        Reason.MAX_SURGE,
        Reason.STOPPING,
        Reason.BACKOFF,
    }
)
"""How a rollout goes, not what stands in its way; told only where it lasts to the end."""


class What(StrEnum):
    """One thing that happens."""

    START = "start"
    STOP = "stop"
    RELABEL = "relabel"
    ADOPT = "adopt"
    REFUSED = "refused"
    """The node would not do a step."""
    READY = "ready"
    STOPPED = "stopped"
    FAILED = "failed"
    """It ended by itself, or ran out of time."""


@dataclass(frozen=True)
class Event:
    """`at_s` counts from the observation."""

    at_s: float
    what: What
    replica: str
    placement: str = ""
    seats: tuple[Seat, ...] = ()
    reason: str = ""


@dataclass(frozen=True)
class Capacity:
    """Ready replicas of one placement: before, at the lowest, and at the end."""

    placement: str
    model: str
    wanted: int
    before: int
    lowest: int
    lowest_at_s: float
    after: int


@dataclass(frozen=True)
class Held:
    """Something wanted that was not done, from when to when."""

    subject: str
    reason: Reason
    message: str
    placement: str = ""
    since_s: float = 0.0
    until_s: float | None = None
    """None: to the end."""


@dataclass
class History:
    """Watches one fleet in memory. Times are seconds since it was made."""

    fleet: SimFleet
    events: list[Event] = field(default_factory=list)
    counts: dict[str, Capacity] = field(default_factory=dict)
    _held: dict[tuple[str, Reason], Held] = field(default_factory=dict)
    _was: dict[tuple[str, str], tuple[bool, bool]] = field(default_factory=dict)
    """(node, launch) → whether it was alive, and ready."""
    _holds_of_last: set[tuple[str, Reason]] = field(default_factory=set)
    _told_first: dict[tuple[str, Reason], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began = self.fleet.clock.now
        self._was = {key: (s.alive, s.ready_at is not None) for key, s in self._leaders()}

    @property
    def now_s(self) -> float:
        """Since the observation."""
        return self.fleet.clock.now - self.began

    @property
    def last_s(self) -> float:
        """When the last thing happened."""
        return max((e.at_s for e in self.events), default=0.0)

    def told(self) -> tuple[Event, ...]:
        """In order of time; what happens at one moment keeps its order."""
        return tuple(sorted(self.events, key=lambda e: e.at_s))

    def capacity(self) -> tuple[Capacity, ...]:
        """By placement."""
        return tuple(self.counts[name] for name in sorted(self.counts))

    def held(self) -> tuple[Held, ...]:
        """What lasts to the end first, then by time; what merely takes its turn is left out."""
        shown = [h for h in self._held.values() if h.until_s is None or h.reason not in IN_PASSING]
        return tuple(sorted(shown, key=lambda h: (h.until_s is not None, h.since_s, h.subject)))

    # --- passes --------------------------------------------------------------------------------

    def record(self, made: Pass) -> None:
        """What a pass decided, did, and left undone."""
        results = {id(step): code for step, code in made.done}
        by_step = {id(s): c for c in made.plan.changes for s in c.steps}
        placements = {r.replica: r.placement for r in made.diff.replicas}
        for step in made.plan.steps:
            change = by_step.get(id(step))
            self.events.append(
                _of_step(step, change, results.get(id(step), ""), self.now_s, placements)
            )
        self._count(made, results)
        self._hold(made)
        self.lived_through()

    def _count(self, made: Pass, results: dict[int, str]) -> None:
        stopped = {
            s.launch
            for s in made.plan.steps
            if isinstance(s, StopStep) and results.get(id(s)) == "done"
        }
        before: dict[str, int] = {}
        after: dict[str, int] = {}
        wanted: dict[str, int] = {}
        models: dict[str, str] = {}
        for name, placement in made.desired.placements.items():
            before[name] = after[name] = wanted[name] = 0
            models[name] = made.desired.profiles[placement.profile].model
        for replica in made.diff.replicas:
            name = replica.placement
            models.setdefault(name, replica.model)
            mine = made.desired.placements.get(name)
            if replica.wanted and mine is not None and not mine.suspend:
                wanted[name] = wanted.get(name, 0) + 1
            before[name] = before.get(name, 0) + bool(_ready(replica, set()))
            after[name] = after.get(name, 0) + bool(_ready(replica, stopped))
        for name in {**before, **self.counts}:
            self._note(
                name,
                models.get(name, ""),
                wanted.get(name, 0),
                before.get(name, 0),
                after.get(name, 0),
            )

    def _note(self, name: str, model: str, wanted: int, ready: int, left: int) -> None:
        known = self.counts.get(name)
        if known is None:
            known = Capacity(name, model, wanted, ready, ready, self.now_s, ready)
        lowest = min(ready, left)
        if lowest < known.lowest:
            known = replace(known, lowest=lowest, lowest_at_s=self.now_s)
        self.counts[name] = replace(known, wanted=wanted, after=left)

    def _hold(self, made: Pass) -> None:
        now: dict[tuple[str, Reason], tuple[str, str]] = {}
        for change in made.plan.changes:
            if change.waits and change.waits_for is not None and not change.steps:
                key = f"replica {change.address}", change.waits_for
                now[key] = change.waits, change.placement
        for hold in made.plan.holds:
            now[hold.subject, hold.reason] = hold.message, hold.placement
        for key in self._holds_of_last - now.keys():
            # As it was told first: what counts down would say at its end that little is left.
            first = self._told_first[key]
            self._held[key] = replace(self._held[key], until_s=self.now_s, message=first)
        for key, (message, placement) in now.items():
            if key not in self._holds_of_last:
                self._told_first[key] = message
            since = self._held[key].since_s if key in self._held else self.now_s
            self._held[key] = Held(key[0], key[1], message, placement, since)
        self._holds_of_last = set(now)

    # --- time ----------------------------------------------------------------------------------

    def lived_through(self) -> None:
        """What launches did by themselves since the last call."""
        first = len(self.events)
        for key, shardlet in self._leaders():
            alive, ready = shardlet.alive, shardlet.ready_at is not None
            was = self._was.get(key, (True, False))
            self._was[key] = alive, ready
            if ready and not was[1]:
                self._lived(shardlet.ready_at or 0.0, What.READY, shardlet)
            if was[0] and not alive and shardlet.exit is not None:
                stopped = shardlet.exit.kind is ExitKind.STOPPED
                what = What.STOPPED if stopped else What.FAILED
                self._lived(shardlet.ended_at, what, shardlet, _why_ended(shardlet))
        self.events[first:] = sorted(self.events[first:], key=lambda e: (e.at_s, e.replica))

    def _lived(self, when: float, what: What, shardlet: Shardlet, reason: str = "") -> None:
        labels = shardlet.labels
        replica = labels.replica or str(shardlet.spec["replica"])
        at_s = max(0.0, when - self.began)
        seats = _places(shardlet)
        self.events.append(Event(at_s, what, replica, labels.placement, seats, reason))

    def _leaders(self) -> Iterator[tuple[tuple[str, str], Shardlet]]:
        for name, node in self.fleet.nodes.items():
            for launch, shardlet in node.launches.items():
                if shardlet.spec["rank"] == 0:
                    yield (name, launch), shardlet


def _ready(replica: JudgedReplica, stopped: set[str]) -> bool:
    return any(
        j.view.ready and not j.view.stop_asked and j.view.launch not in stopped
        for j in replica.launches
    )


def _places(shardlet: Shardlet) -> tuple[Seat, ...]:
    places = sorted(shardlet.spec["places"], key=lambda p: int(p["rank"]))
    return tuple(Seat(p["node"], tuple(p["gpus"])) for p in places)


def _why_ended(shardlet: Shardlet) -> str:
    ended = shardlet.exit
    if ended is None or ended.kind is ExitKind.STOPPED:
        return ""
    code = f" with code {ended.code}" if ended.code is not None else ""
    said = shardlet.behaviour.log[-1] if shardlet.behaviour.log else ""
    return f"{ended.kind.value}{code}" + (f": {said}" if said else "")


def _of_step(
    step: Step, change: Change | None, code: str, at_s: float, placements: dict[str, str]
) -> Event:
    what, replica, seats, reason = _told(step, change)
    if code != "done":
        what, reason = What.REFUSED, f"{step.kind}: {code or 'not asked'}"
    return Event(at_s, what, replica, placements.get(replica, ""), seats, reason)


def _told(step: Step, change: Change | None) -> tuple[What, str, tuple[Seat, ...], str]:
    """What it is, of which replica, where and why."""
    why = change.reason if change else ""
    if isinstance(step, StartStep):
        return What.START, step.replica, change.after_seats if change else (), why
    seats = tuple(Seat(node) for node in step.nodes)
    if isinstance(step, StopStep):
        seats = change.before_seats if change else seats
        return What.STOP, step.replica, seats, step.reason or why
    if isinstance(step, RelabelStep):
        return What.RELABEL, step.replica, seats, why
    return What.ADOPT, step.launch.rpartition("-")[0], seats, "its supervisor is gone"
