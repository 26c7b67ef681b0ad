"""How a launch ended, whose fault that is, and whether it counts as a failure of its profile.

Only what ended by itself counts: neither a reboot, nor a node that a person called lost, nor a
rank that was never started, nor what followed a stop that was asked for. Failures of the place
(path missing, memory or port taken, pre-flight) delay the next start and blame the place alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import engines
from engines.base import FailureKind
from reconciler.core.observed import ExitKind, Shard
from reconciler.core.ranks import DeadRank, Death
from reconciler.core.views import Sighting


class Fault(StrEnum):
    """Who is to blame."""

    NOBODY = "nobody"
    COMMAND = "command"
    PLACE = "place"
    CRASH = "crash"


@dataclass(frozen=True)
class Ending:
    """One launch's end. Ages are durations that its nodes measured."""

    reason: str
    fault: Fault = Fault.NOBODY
    on_request: bool = False
    """All of it was stopped because somebody asked."""
    clears: bool = False
    """A reboot, then or since: what failed before it no longer delays anything."""
    executed: bool = True
    """False: the node refused before anything ran; asking again costs nothing."""
    nodes: tuple[str, ...] = ()
    """Where ranks failed by themselves."""
    age_s: float = 0.0
    """How long ago; 0 where no node has measured it."""

    @property
    def failed(self) -> bool:
        """Counts against the profile."""
        return self.fault in (Fault.COMMAND, Fault.CRASH)

    @property
    def delays(self) -> bool:
        """The next start of the replica waits for the back-off."""
        return self.fault is not Fault.NOBODY and self.executed


def ending(sighting: Sighting) -> Ending | None:
    """How the launch ended; None while no rank of it is known to be dead."""
    dead = sighting.dead
    if not dead:
        return None
    for rule in _RULES:
        found = rule(sighting, dead)
        if found is not None:
            return replace(found, clears=True) if any(r.before_boot for r in dead) else found
    return Ending("stopped on request", on_request=True, age_s=_age(dead))


OVERDUE_S = 15.0
OVERDUE_SHARE = 0.05
"""Beyond the start timeout, before the reconciler ends a launch itself. Its supervisor does that,
and records a failure; a stop that came first would read as one on request, and the profile that
never gets ready would never be rejected. The share is for clocks that do not run alike."""


def overdue(sighting: Sighting) -> str:
    """Why an alive launch that was never ready is taken as timed out; empty: it is not."""
    view = sighting.view
    if view.ready or view.ever_ready or not view.alive:
        return ""
    for shard in view.shards.values():
        late_s = shard.started_age_s - shard.start_timeout_s
        if shard.alive and late_s > OVERDUE_S + OVERDUE_SHARE * shard.start_timeout_s:
            return (
                f"not ready {shard.started_age_s:.0f} s after its start"
                f" (the timeout is {shard.start_timeout_s:.0f} s)"
            )
    return ""


def own_exits(dead: tuple[DeadRank, ...]) -> list[tuple[DeadRank, Shard]]:
    """Ranks that ended by themselves, before anybody asked for a stop."""
    # No age outlives a boot: what was asked to stop before one is taken at its word.
    dead = tuple(r for r in dead if not (r.before_boot and r.shard and r.shard.stop_asked))
    asked = [r.shard.stop_age_s for r in dead if r.shard and r.shard.stop_asked]
    stop_age = max(asked, default=-1.0)
    return [
        (r, r.shard)
        for r in dead
        if r.shard is not None
        and r.shard.exit is not None
        and r.shard.exit.kind in _BY_ITSELF
        and (not asked or r.shard.exit.age_s > stop_age or _never_asked(r.shard))
    ]


def _never_asked(shard: Shard) -> bool:
    """It ran into its start timeout, and no stop of it was asked for: what stops the others is its
    end. Their ages are of other clocks and other looks, so which was first is not told by them."""
    return shard.exit is not None and shard.exit.kind is ExitKind.TIMEOUT and not shard.stop_asked


_BY_ITSELF = frozenset(
    {ExitKind.EXITED, ExitKind.SIGNAL, ExitKind.TIMEOUT, ExitKind.SIDECAR, ExitKind.UNKNOWN}
)


# --- The rules, in order: what excuses the profile comes first ----------------------------------


def _reboot(sighting: Sighting, dead: tuple[DeadRank, ...]) -> Ending | None:
    at = [r.node for r in dead if r.how is Death.REBOOT]
    if not at:
        return None
    return Ending(f"reboot of {' and '.join(at)}", clears=True, age_s=_age(dead))


def _lost(sighting: Sighting, dead: tuple[DeadRank, ...]) -> Ending | None:
    at = [r.node for r in dead if r.how is Death.LOST]
    return Ending(f"node {' and '.join(at)} is lost", age_s=_age(dead)) if at else None


def _by_itself(sighting: Sighting, dead: tuple[DeadRank, ...]) -> Ending | None:
    exits = own_exits(dead)
    if not exits:
        return None
    engine = _engine(sighting)
    kinds = [_classify(engine, shard) for _, shard in exits]
    worst = min(range(len(kinds)), key=lambda i: (_BLAME.index(kinds[i]), exits[i][0].rank))
    rank, shard = exits[worst]
    return Ending(
        _words(rank, shard, sighting, kinds[worst]),
        Fault(kinds[worst].value),
        nodes=tuple(sorted({r.node for r, _ in exits})),
        age_s=_age(dead),
    )


def _preflight(sighting: Sighting, dead: tuple[DeadRank, ...]) -> Ending | None:
    for rank in dead:
        seen = rank.shard.exit if rank.shard else None
        if seen is not None and seen.kind is ExitKind.PREFLIGHT:
            text = f"{rank.node} was not fit for the start: {seen.message or 'pre-flight failed'}"
            at = (rank.node,)
            return Ending(text, Fault.PLACE, executed=False, nodes=at, age_s=_age(dead))
    return None


def _gone(sighting: Sighting, dead: tuple[DeadRank, ...]) -> Ending | None:
    """A rank without a trace of its end: a failure only if the launch once served."""
    for rank in dead:
        if rank.how is Death.ABSENT or (rank.shard is not None and rank.shard.exit is None):
            if not sighting.view.ever_ready:
                text = f"incomplete: rank {rank.rank} was never started on {rank.node}"
                return Ending(text, age_s=_age(dead))
            if any(r.how is Death.STOPPED for r in dead):
                # Nodes sweep their records at different times; what was stopped is over anyway.
                return None
            text = f"rank {rank.rank} is gone from {rank.node}"
            return Ending(text, Fault.CRASH, nodes=(rank.node,), age_s=_age(dead))
    return None


_RULES = (_reboot, _lost, _by_itself, _preflight, _gone)
_BLAME = (FailureKind.COMMAND, FailureKind.PLACE, FailureKind.CRASH)


def _age(dead: tuple[DeadRank, ...]) -> float:
    """Of the rank that ended last. One whose start was cut off tells no age, and is asked no more
    than the others know: else a back-off that is measured by it would never end."""
    ages = (r.shard.exit.age_s for r in dead if r.shard and r.shard.exit)
    return min((age for age in ages if age > 0), default=0.0)


def _engine(sighting: Sighting) -> str:
    if sighting.view.profile is not None:
        return sighting.view.profile.profile.engine
    return ""


def _classify(engine: str, shard: Shard) -> FailureKind:
    assert shard.exit is not None
    if shard.exit.kind is not ExitKind.EXITED or not engine:
        return FailureKind.CRASH
    try:
        return engines.get(engine).classify_exit(shard.exit.code, shard.log_tail)
    except engines.UnknownEngine:
        return FailureKind.CRASH


def _words(rank: DeadRank, shard: Shard, sighting: Sighting, kind: FailureKind) -> str:
    assert shard.exit is not None
    seen = shard.exit
    what = _WORDS[seen.kind].format(
        code=seen.code if seen.code is not None else "unknown",
        signal=seen.signal or "unknown",
        command=seen.command or "its command",
    )
    where = f" (rank {rank.rank} on {rank.node})" if len(sighting.view.places) > 1 else ""
    blame = f", by its {kind.value}" if kind is not FailureKind.CRASH else ""
    said = seen.message or next((line for line in reversed(shard.log_tail) if line.strip()), "")
    return f"{what}{where}{blame}" + (f": {said.strip()[:200]}" if said else "")


_WORDS: dict[Any, str] = {
    ExitKind.EXITED: "exited with code {code}",
    ExitKind.SIGNAL: "ended by signal {signal}",
    ExitKind.TIMEOUT: "not ready within its start timeout",
    ExitKind.SIDECAR: "its sidecar {command} kept failing",
    ExitKind.UNKNOWN: "gone, and nobody saw how",
}
