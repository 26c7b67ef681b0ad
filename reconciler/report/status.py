"""Two axes and four conditions per placement, read off desired, diff and plan by ordered rules.

Sync says whether what runs is what the revision says, health whether it serves; a rolling
replacement is OutOfSync and Healthy at once, and that is the normal case. The rules are tables,
first match wins, so that a state can be looked up instead of traced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from reconciler.core.changes import Change, GuardVerdict, Hold, Plan, Reason, Symbol
from reconciler.core.model import PER_NODE, Desired, Placement
from reconciler.core.observed import ExitKind, Observed
from reconciler.core.verdict import Diff, JudgedLaunch, JudgedReplica, Verdict
from reconciler.report.passreport import (
    Condition,
    ConditionKind,
    Health,
    NodeStatus,
    PlacementStatus,
    ReplicaStatus,
    Sync,
)

NEEDS_A_PERSON = frozenset(
    {
        Reason.HOST_KEY_MISMATCH,
        Reason.AUTHENTICATION_FAILED,
        Reason.MACHINE_ID_CHANGED,
        Reason.DUPLICATE_NODE,
        Reason.NODE_UNSUITABLE,
        Reason.UNKNOWN_FINGERPRINT,
        Reason.INFEASIBLE,
        Reason.REJECTED,
        Reason.CRASH_LOOP,
        Reason.STUCK,
        Reason.MANUAL_UPDATE,
        Reason.OBSERVATION_DAMAGED,
        Reason.NODE_NOT_EMPTY,
    }
)
"""Reasons that no later pass resolves by itself."""

BLOCKERS = frozenset(
    {
        Reason.BLAST_RADIUS,
        Reason.WINDOW_CLOSED,
        Reason.FROZEN,
        Reason.LEASE_HELD,
        Reason.FENCED,
        Reason.NO_CAPACITY,
        Reason.NODE_HELD,
        Reason.STRANGER_ON_GPU,
        Reason.QUARANTINED,
        Reason.SICK_TOGETHER,
        Reason.NODE_UNREACHABLE,
        Reason.PERHAPS_RUNNING,
        Reason.PREFLIGHT_FAILED,
    }
)
"""Reasons that something outside the placement has to end first."""

SAID_BY_PEOPLE = frozenset({Reason.BLAST_RADIUS, Reason.FROZEN, Reason.NODE_HELD, Reason.SUSPENDED})
"""Reasons outside the placement that a person ends, and no later pass."""

_SICK = frozenset({Verdict.EXITED, Verdict.TIMED_OUT, Verdict.UNHEALTHY})
_UNSEEN = frozenset({Verdict.UNREACHABLE, Verdict.UNKNOWN})
_OUT = frozenset(Verdict) - {
    Verdict.MATCHING,
    Verdict.STARTING,
    Verdict.UNHEALTHY,
    Verdict.SUSPENDED,
    Verdict.STOPPING,
}
_MOVING = frozenset({Verdict.STARTING, Verdict.STOPPING})


@dataclass(frozen=True)
class _Facts:
    """All that the rules look at, for one placement."""

    placement: Placement
    replicas: tuple[JudgedReplica, ...]
    changes: tuple[Change, ...]
    holds: tuple[Hold, ...]
    guards: tuple[GuardVerdict, ...]
    wanted: int
    ready: int
    acting: bool

    def any(self, verdicts: Iterable[Verdict]) -> bool:
        return any(r.wanted and r.verdict in verdicts for r in self.replicas)

    @property
    def acts(self) -> bool:
        """This pass (or whoever leads the fleet) starts, stops or relabels something of it."""
        return self.acting and any(c.steps for c in self.changes)

    @property
    def alive(self) -> bool:
        return any(launch.view.alive for r in self.replicas for launch in r.launches)


Rule = tuple[Callable[[_Facts], bool], Health]

_HEALTH: tuple[Rule, ...] = (
    (lambda f: f.placement.suspend and not f.ready, Health.SUSPENDED),
    # What a guard or a freeze keeps running serves all the same: only sync says that it should not.
    (lambda f: f.placement.suspend and f.acts, Health.PROGRESSING),
    (lambda f: f.ready >= f.wanted, Health.HEALTHY),
    (lambda f: f.any(_SICK), Health.DEGRADED),
    (lambda f: f.any(_UNSEEN), Health.UNKNOWN),
    (lambda f: f.acts or f.any(_MOVING), Health.PROGRESSING),
    (lambda f: not f.alive, Health.MISSING),
)
"""First match wins; with none, something lives and is not ready: degraded."""

_SYNC: tuple[tuple[Callable[[_Facts], bool], Sync], ...] = (
    (lambda f: f.any(_UNSEEN), Sync.UNKNOWN),
    (lambda f: any(c.symbol is not Symbol.UNKNOWN for c in f.changes), Sync.OUT_OF_SYNC),
    (lambda f: any(_is_rejected(r) for r in f.replicas), Sync.OUT_OF_SYNC),
    (lambda f: any(r.verdict in _OUT for r in f.replicas), Sync.OUT_OF_SYNC),
)
"""First match wins; with none, what runs is what the revision says."""


def _is_rejected(replica: JudgedReplica) -> bool:
    return bool(replica.effective and (replica.effective.rejected or replica.effective.waiting))


def placement_statuses(
    desired: Desired, diff: Diff, plan: Plan, *, acting: bool = True
) -> tuple[PlacementStatus, ...]:
    """One status per placement of the revision, by name. `acting`: somebody carries the plan out;
    else what is due and not begun is no progress."""
    sorted_out = _BySubject(
        _by_placement(diff.replicas), _by_placement(plan.changes), _by_placement(plan.holds)
    )
    return tuple(
        _status(desired, _facts(placement, sorted_out, plan, acting))
        for _, placement in sorted(desired.placements.items())
    )


class _Placed(Protocol):
    @property
    def placement(self) -> str: ...


P = TypeVar("P", bound=_Placed)


def _by_placement(items: Iterable[P]) -> Mapping[str, Sequence[P]]:
    """Once for all placements: asked one by one, a large fleet would be walked for each."""
    found: dict[str, list[P]] = {}
    for item in items:
        found.setdefault(item.placement, []).append(item)
    return found


@dataclass(frozen=True)
class _BySubject:
    replicas: Mapping[str, Sequence[JudgedReplica]]
    changes: Mapping[str, Sequence[Change]]
    holds: Mapping[str, Sequence[Hold]]


def _facts(placement: Placement, found: _BySubject, plan: Plan, acting: bool) -> _Facts:
    replicas = tuple(found.replicas.get(placement.name, ()))
    wanted = [r for r in replicas if r.wanted]
    addresses = {r.replica for r in replicas}
    count = len(wanted) if placement.replicas == PER_NODE else int(placement.replicas)
    return _Facts(
        placement=placement,
        replicas=replicas,
        changes=tuple(found.changes.get(placement.name, ())),
        holds=tuple(found.holds.get(placement.name, ())),
        guards=tuple(
            g
            for g in plan.guards
            if not g.passed and not g.approved and any(c.replica in addresses for c in g.changes)
        ),
        wanted=0 if placement.suspend else count,
        ready=sum(r.ready for r in wanted),
        acting=acting,
    )


def _status(desired: Desired, facts: _Facts) -> PlacementStatus:
    profile = desired.profiles.get(facts.placement.profile)
    health = next((health for rule, health in _HEALTH if rule(facts)), Health.DEGRADED)
    sync = next((sync for rule, sync in _SYNC if rule(facts)), Sync.SYNCED)
    return PlacementStatus(
        placement=facts.placement.name,
        model=profile.model if profile else "",
        profile=facts.placement.profile,
        sync=sync,
        health=health,
        wanted=facts.wanted,
        ready=facts.ready,
        conditions=_conditions(facts, health),
        replicas=tuple(replica_status(r) for r in facts.replicas),
    )


def _conditions(facts: _Facts, health: Health) -> tuple[Condition, ...]:
    causes = [(h.reason, h.message) for h in facts.holds]
    causes += [(c.waits_for, c.waits) for c in facts.changes if c.waits_for]
    causes += [
        (Reason.BLAST_RADIUS, g.message or f"{g.value}, limit {g.limit}") for g in facts.guards
    ]
    stalled = next((c for c in causes if c[0] in NEEDS_A_PERSON), None)
    blocked = next((c for c in causes if c[0] in BLOCKERS), None)
    first = causes[0] if causes else (None, _not_ready(facts))
    ready = health is Health.HEALTHY
    moving = facts.acts or facts.any(_MOVING)
    return (
        Condition(ConditionKind.READY, ready, *((None, "") if ready else first)),
        Condition(ConditionKind.RECONCILING, moving),
        Condition(ConditionKind.STALLED, stalled is not None, *(stalled or (None, ""))),
        Condition(ConditionKind.BLOCKED, blocked is not None, *(blocked or (None, ""))),
    )


def _not_ready(facts: _Facts) -> str:
    if facts.placement.suspend:
        return "suspended in git"
    sick = next((r for r in facts.replicas if r.wanted and not r.ready), None)
    return f"{sick.replica}: {sick.verdict}: {sick.reason}" if sick else ""


def replica_status(replica: JudgedReplica) -> ReplicaStatus:
    """A replica by the launch that it is shown by."""
    shown = shown_launch(replica)
    if shown is None or (replica.blocked and not shown.view.alive):
        # Where it ran once is not where it perhaps runs now.
        return ReplicaStatus(
            replica.replica,
            replica.verdict.value,
            replica.blocked or replica.reason,
            wanted=replica.wanted,
        )
    view = shown.view
    shards = view.shards.values()
    failed = next((one for one in by_age(replica.launches) if failed_to_start(one)), None)
    return ReplicaStatus(
        replica=replica.replica,
        verdict=replica.verdict.value,
        reason=replica.reason,
        ready=replica.ready,
        wanted=replica.wanted,
        launch=view.launch,
        nodes=tuple(p.node for p in view.places) or view.seen_nodes,
        endpoint=_endpoint(shown),
        changes=shown.changes,
        started_age_s=max((s.started_age_s for s in shards), default=0.0),
        ready_for_s=min((s.health.ready_for_s for s in shards if s.serves), default=0.0),
        failed_launch=failed.view.launch if failed else "",
        failed_why=failed.reason if failed else "",
    )


def by_age(launches: Iterable[JudgedLaunch]) -> Sequence[JudgedLaunch]:
    """Newest first."""
    return sorted(launches, key=lambda one: -one.view.seq)


def failed_to_start(launch: JudgedLaunch) -> bool:
    """Whether it ended by itself, neither ready before nor asked to stop."""
    if launch.verdict not in (Verdict.EXITED, Verdict.TIMED_OUT) or launch.view.ever_ready:
        return False
    shards = launch.view.shards.values()
    ended = any(s.exit and s.exit.kind is not ExitKind.PREFLIGHT for s in shards)
    return ended and not any(s.stop_asked for s in shards)


def shown_launch(replica: JudgedReplica) -> JudgedLaunch | None:
    """The current launch, else the kept one, else the newest."""
    by_id = {launch.view.launch: launch for launch in replica.launches}
    named = by_id.get(replica.current) or by_id.get(replica.kept)
    return named or (replica.launches[0] if replica.launches else None)


def _endpoint(launch: JudgedLaunch) -> str:
    """Where the leader listens, as its own record says."""
    leader = next((p for p in launch.view.places if p.rank == 0), None)
    if leader is None or not launch.view.alive or "http" not in leader.ports:
        return ""
    address = leader.address or leader.node
    host = f"[{address}]" if ":" in address else address
    return f"{host}:{leader.ports['http']}"


def node_statuses(desired: Desired, observed: Observed) -> tuple[NodeStatus, ...]:
    """One status per node of the revision (departed ones too), by name."""
    return tuple(
        _node(name, "departed" if name in desired.departed else node.state.value, observed)
        for name, node in sorted(desired.nodes.items())
    )


def _node(name: str, state: str, observed: Observed) -> NodeStatus:
    look = observed.nodes.get(name)
    if look is None:
        return NodeStatus(name, state, seen=False, detail="not asked")
    answer = look.answer
    if answer is None:
        error = look.error.value if look.error else ""
        detail = f"{look.detail}; {look.hint}" if look.hint else look.detail
        return NodeStatus(name, state, seen=False, error=error, detail=detail, look_ms=look.look_ms)
    hold, lease = answer.hold, answer.lease
    return NodeStatus(
        node=name,
        state=state,
        seen=True,
        detail=answer.shards_error or answer.gpus.error,
        look_ms=look.look_ms,
        held_by=f"{hold.who}: {hold.reason}" if hold else "",
        held_for_s=(hold.remaining_s or 0.0) if hold else 0.0,
        held_launch=hold.launch if hold else "",
        lease_owner=lease.owner if lease else "",
        lease_remaining_s=lease.remaining_s if lease else 0.0,
    )
