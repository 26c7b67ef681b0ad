"""The verdict table: an ordered list of rules, the first that matches a launch is its verdict.

Each rule answers with its reason, or with nothing. Adding a case is a row here and a test. A rule
sees one `Case`; it does not know what the other rules say, only that they did not match.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reconciler.core.catalog import Catalog, parse_replica
from reconciler.core.endings import Ending, overdue
from reconciler.core.fingerprint import method_known
from reconciler.core.model import PER_NODE, Placement
from reconciler.core.verdict import Effective, FieldChange, JudgedLaunch, LaunchView, Verdict
from reconciler.core.views import Sighting
from reconciler.core.wanted import fits

STUCK_AFTER_S = 15.0
"""Beyond drain and grace: KILL has been sent and swept for; what is still there is stuck."""


@dataclass(frozen=True)
class Case:
    """One launch, its end if it has one, and what is wanted of its replica."""

    sighting: Sighting
    end: Ending | None
    catalog: Catalog
    unhealthy_after_s: int
    placement: Placement | None = None
    """None: nobody wants the replica."""
    effective: Effective | None = None
    current: str = ""
    current_ready: bool = False
    kept: str = ""


Rule = Callable[[Case], str]

AS_WANTED = "as wanted"

RESTART = "placement.restart"
"""The one field beside the profile's whose edit makes a launch stale."""


def judge(case: Case) -> JudgedLaunch:
    """The verdict of one launch."""
    verdict, reason = next((v, text) for v, rule in TABLE if (text := rule(case)))
    view = case.sighting.view
    changes = why_stale(case) if verdict is Verdict.STALE else ()
    not_wanted = case.placement is None
    return JudgedLaunch(
        view=view,
        verdict=verdict,
        reason=reason if not changes else f"{reason}: {in_words(changes)}",
        changes=changes,
        failed=(verdict is Verdict.EXITED and case.end is not None and case.end.failed)
        or verdict is Verdict.TIMED_OUT,
        stuck=verdict is Verdict.STOPPING and is_stuck(case.sighting.view),
        not_wanted=verdict is Verdict.SURPLUS and not_wanted,
        repair=_repair(verdict, case),
    )


def serves_wanted(case: Case) -> bool:
    """Whether the launch could be its replica's current one: live, right profile, right place."""
    return (
        is_live(case.sighting, case.end)
        and not _other_profile(case)
        and not _misplaced(case)
        and not overdue(case.sighting)
    )


def is_live(sighting: Sighting, end: Ending | None) -> bool:
    """Alive as far as it can be seen (a launch out of sight may be), and going on."""
    view = sighting.view
    running = view.alive or bool(sighting.silence)
    return running and end is None and not view.stop_asked and not sighting.damage


def why_stale(case: Case) -> tuple[FieldChange, ...]:
    """The fields behind another fingerprint; and the restart text, where that was edited."""
    view, effective, placement = case.sighting.view, case.effective, case.placement
    changes: tuple[FieldChange, ...] = ()
    if effective is not None and view.fingerprint != effective.fingerprint:
        changes = case.catalog.explain(
            (view.profile, view.fingerprint), (effective.profile, effective.fingerprint)
        )
    if placement is not None and placement.restart and placement.restart != view.restart:
        restart = FieldChange(RESTART, view.restart, placement.restart)
        changes = (*changes, restart)
    return changes


def without_fields(reason: str, changes: tuple[FieldChange, ...]) -> str:
    """`reason` for whoever shows the fields beside it."""
    return reason.removesuffix(f": {in_words(changes)}") if changes else reason


def in_words(changes: tuple[FieldChange, ...]) -> str:
    """`profile.args[2] 8192 → 16384`, at most three of them."""
    shown = ", ".join(f"{c.path} {c.before or '–'} → {c.after or '–'}" for c in changes[:3])
    return shown + (f" and {len(changes) - 3} more" if len(changes) > 3 else "")


# --- The table ----------------------------------------------------------------------------------


def _unreachable(case: Case) -> str:
    return case.sighting.silence


def _stopping(case: Case) -> str:
    view = case.sighting.view
    if not (view.stop_asked and view.alive):
        return ""
    age = max(s.stop_age_s for s in view.shards.values() if s.stop_asked)
    if not is_stuck(view):
        return f"asked to stop {age:.0f} s ago"
    pids = sorted({pid for s in view.shards.values() if s.alive for pid in s.pids})
    named = f" (pids {', '.join(map(str, pids[:8]))})" if pids else ""
    return f"stuck: asked to stop {age:.0f} s ago and still there{named}"


def is_stuck(view: LaunchView) -> bool:
    """Asked to stop for longer than its drain and grace allow, and still there."""
    drain = view.profile.profile.drain_s if view.profile else 0
    return any(
        s.alive and s.stop_asked and s.stop_age_s > s.stop_grace_s + drain + STUCK_AFTER_S
        for s in view.shards.values()
    )


def _unknown(case: Case) -> str:
    damage = case.sighting.damage
    if not damage:
        return ""
    view = case.sighting.view
    if not view.alive:
        # A damaged leftover says nothing reliable about its end; a good one is history.
        return f"{damage}; nothing of it runs" if _unreadable(case) else ""
    return (
        f"{damage}; it is left alone: `reconcile stop {view.launch}` ends it,"
        " and what is wanted is then started anew"
    )


def _unreadable(case: Case) -> bool:
    view = case.sighting.view
    return not view.places or not method_known(view.fingerprint)


def _surplus(case: Case) -> str:
    view = case.sighting.view
    if not view.alive:
        return ""
    if case.placement is None:
        return _why_unwanted(case)
    if case.current_ready and view.launch != case.current:
        return f"{case.current} has taken over"
    if case.current and view.launch not in (case.current, case.kept):
        return f"{case.current} is to take over"
    if case.kept and not case.current and view.launch != case.kept and not view.stop_asked:
        return f"{case.kept} serves until a successor does"
    return ""


def _why_unwanted(case: Case) -> str:
    """By which edit a replica is not wanted any more."""
    view, desired = case.sighting.view, case.catalog.desired
    name = (parse_replica(view.replica) or ("", 0))[0]
    placement = desired.placements.get(name)
    if placement is None:
        return f"placement {name} is not in git (any more)"
    if placement.replicas == PER_NODE:
        return case.catalog.why_not(placement, view.places) or _not_its_own(case, placement)
    count = int(placement.replicas)
    return f"placement {name} has {count} replica{'' if count == 1 else 's'} now"


def _not_its_own(case: Case, placement: Placement) -> str:
    """Of one per node, on a node on which one may be."""
    where = next((p.node for p in case.sighting.view.places if p.rank == 0), "")
    node = case.catalog.desired.nodes.get(where)
    if node is not None and fits(placement, case.catalog, node):
        return f"placement {placement.name} has another replica on node {where}"
    return f"{f'node {where}' if where else 'its node'} is none of placement {placement.name}'s"


def _suspended(case: Case) -> str:
    if case.placement is None or not case.placement.suspend:
        return ""
    return f"placement {case.placement.name} is suspended"


def _exited(case: Case) -> str:
    return case.end.reason if case.end else "" if case.sighting.view.alive else "nothing of it runs"


def _timed_out(case: Case) -> str:
    return overdue(case.sighting)


def _stale(case: Case) -> str:
    return _other_profile(case)


def _other_profile(case: Case) -> str:
    view, placement = case.sighting.view, case.placement
    if case.effective is not None and view.fingerprint != case.effective.fingerprint:
        return "the profile was edited"
    if placement is not None and placement.restart and view.restart != placement.restart:
        return "a restart is asked for"
    return ""


def _misplaced(case: Case) -> str:
    if case.placement is None:
        return ""
    return case.catalog.why_not(case.placement, case.sighting.view.places)


def _starting(case: Case) -> str:
    view = case.sighting.view
    if view.ready or view.ever_ready:
        return ""
    age = max((s.started_age_s for s in view.shards.values()), default=0.0)
    return f"started {age:.0f} s ago, not ready yet"


def _unhealthy(case: Case) -> str:
    for shard in case.sighting.view.shards.values():
        health = shard.health
        if shard.serves and not health.ok and health.failing_for_s >= case.unhealthy_after_s > 0:
            detail = f": {health.detail}" if health.detail else ""
            return f"has failed its health check for {health.failing_for_s:.0f} s{detail}"
    return ""


def _matching(case: Case) -> str:
    return AS_WANTED if case.sighting.view.ready else "as wanted, but not ready just now"


TABLE: tuple[tuple[Verdict, Rule], ...] = (
    (Verdict.UNREACHABLE, _unreachable),
    (Verdict.STOPPING, _stopping),
    (Verdict.UNKNOWN, _unknown),
    (Verdict.SURPLUS, _surplus),
    (Verdict.SUSPENDED, _suspended),
    (Verdict.EXITED, _exited),
    (Verdict.TIMED_OUT, _timed_out),
    (Verdict.STALE, _stale),
    (Verdict.MISPLACED, _misplaced),
    (Verdict.STARTING, _starting),
    (Verdict.UNHEALTHY, _unhealthy),
    (Verdict.MATCHING, _matching),
)


def _repair(verdict: Verdict, case: Case) -> bool:
    """Whether ending or replacing it takes nothing away that serves."""
    if verdict in (Verdict.EXITED, Verdict.TIMED_OUT):
        return True
    if verdict in (Verdict.STALE, Verdict.MISPLACED):
        return not case.sighting.view.ready
    if verdict is Verdict.SURPLUS and case.placement is not None:
        return case.current_ready or not case.sighting.view.ready
    return False
