"""Many sick at once: a cause outside (a network, a store, a driver), which restarts make worse.

Read off this pass alone: how long each replica has been failing is a duration that its node
measured, so the brake ends by itself when the replicas recover, and holds after a restart of the
reconciler. Who is braked only waits; what has ended is started again as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from reconciler.core.model import Desired
from reconciler.core.verdict import Brake, JudgedLaunch, JudgedReplica, Verdict

LEAST_SICK = 2
LEAST_ON_NODE = 3
"""A node with fewer replicas says little: two of two may well be one model's own fault."""
PROBE_EVERY_S = 1800.0


@dataclass
class _Scope:
    """The replicas of one model, or with a rank on one node."""

    total: int = 0
    onsets: list[float] = field(default_factory=list)
    """How long ago each sick one began to fail."""
    unhealthy: list[JudgedReplica] = field(default_factory=list)


def brakes(replicas: Sequence[JudgedReplica], desired: Desired) -> tuple[Brake, ...]:
    """Models and nodes of which too many are sick at once, sorted by scope. Linear in replicas."""
    wanted = [r for r in replicas if r.wanted]
    if not any(r.verdict is Verdict.UNHEALTHY for r in wanted):
        return ()
    window = float(desired.fleet.unhealthy_after_s)
    braked = {
        name: scope for name, scope in _scopes(wanted).items() if _too_many(name, scope, window)
    }
    probes = _probes(braked, replicas)
    return tuple(
        Brake(
            scope=name,
            reason=f"{len(scope.onsets)} of {scope.total} replicas failed within"
            f" {window:.0f} s of each other: a cause outside is likely, they are left alone",
            sick=len(scope.onsets),
            total=scope.total,
            probe=next((r.replica for r in scope.unhealthy if r.replica in probes), ""),
        )
        for name, scope in sorted(braked.items())
    )


def _scopes(wanted: Iterable[JudgedReplica]) -> dict[str, _Scope]:
    scopes: dict[str, _Scope] = {}
    for replica in wanted:
        onset = _onset(replica)
        shown = _shown(replica)
        nodes = sorted({p.node for p in shown.view.places}) if shown else []
        for name in [f"model {replica.model}", *(f"node {n}" for n in nodes)]:
            scope = scopes.setdefault(name, _Scope())
            scope.total += 1
            if onset is not None:
                scope.onsets.append(onset)
            if replica.verdict is Verdict.UNHEALTHY:
                scope.unhealthy.append(replica)
    return scopes


def _shown(replica: JudgedReplica) -> JudgedLaunch | None:
    named = (j for j in replica.launches if j.view.launch == (replica.current or replica.kept))
    return next(named, replica.launches[0] if replica.launches else None)


def _onset(replica: JudgedReplica) -> float | None:
    """How long ago a replica that had been ready began to fail; None: it is not sick."""
    shown = _shown(replica)
    if replica.ready or shown is None or not shown.view.ever_ready:
        return None
    shards = shown.view.shards.values()
    if shown.verdict is Verdict.EXITED and shown.failed:
        return min((s.exit.age_s for s in shards if s.exit), default=None)
    failing = [s.health.failing_for_s for s in shards if s.serves and not s.health.ok]
    return max(failing, default=0.0) or None


def _too_many(name: str, scope: _Scope, window: float) -> bool:
    if not scope.unhealthy or (name.startswith("node ") and scope.total < LEAST_ON_NODE):
        return False
    together = _most_within(sorted(scope.onsets), window)
    return together >= LEAST_SICK and together * 3 >= scope.total


def _most_within(onsets: Sequence[float], window: float) -> int:
    most = first = 0
    for last, onset in enumerate(onsets):
        while onset - onsets[first] > window:
            first += 1
        most = max(most, last - first + 1)
    return most


def _probes(braked: Mapping[str, _Scope], replicas: Iterable[JudgedReplica]) -> set[str]:
    """One replica per model, where nothing of the model was started within the half hour.

    That a probe was sent is not remembered: its start is seen.
    """
    if not braked:
        return set()
    started = {
        r.model
        for r in replicas
        for j in r.launches
        for s in j.view.shards.values()
        if s.started_age_s < PROBE_EVERY_S
    }
    probes: dict[str, JudgedReplica] = {}
    for scope in braked.values():
        for replica in scope.unhealthy:
            first = probes.get(replica.model)
            if first is None or _order(replica) < _order(first):
                probes[replica.model] = replica
    return {r.replica for model, r in probes.items() if model not in started}


def _order(replica: JudgedReplica) -> tuple[str, int]:
    return replica.placement, replica.ordinal
