"""What a replica shows of its launches: one verdict, one reason, and whether it is in sight at all.

Each launch has been judged by itself; nothing in here judges again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from reconciler.core.endings import Ending
from reconciler.core.model import Placement
from reconciler.core.verdict import JudgedLaunch, Verdict
from reconciler.core.views import Sighting


def in_sight(launches: Iterable[tuple[Sighting, Ending | None]]) -> bool:
    """Whether the replica is known to be somewhere: then it is nowhere else."""
    return any(
        s.silence or (s.view.alive and end is None and not s.view.stop_asked) for s, end in launches
    )


def replica_verdict(
    placement: Placement,
    judged: Sequence[JudgedLaunch],
    ends: Mapping[str, Ending | None],
    current: str,
    kept: str,
    blocked: str,
) -> tuple[Verdict, str]:
    """The verdict of the current launch, else of the kept one, else of the last."""
    shown = next((j for j in judged if j.view.launch == current), None)
    shown = shown or next((j for j in judged if j.view.launch == kept), None)
    serves = "; it serves until it is stopped" if any(j.view.ready for j in judged) else ""
    if shown is not None:
        suspended = shown.verdict is Verdict.SUSPENDED
        return shown.verdict, shown.reason + (serves if suspended else "")
    running = [j for j in judged if j.verdict is not Verdict.EXITED and _counts(j)]
    if placement.suspend and not any(j.verdict in _HELD for j in running):
        return Verdict.SUSPENDED, f"placement {placement.name} is suspended{serves}"
    if blocked:
        return Verdict.UNREACHABLE, blocked
    if running:
        last = most_telling(running)
        return last.verdict, last.reason
    newest = next((j for j in judged if j.verdict is Verdict.EXITED), None)
    end = ends[newest.view.launch] if newest else None
    if newest is not None and end is not None and not end.on_request:
        return newest.verdict, newest.reason
    return Verdict.MISSING, "nothing of it runs"


_HELD = (Verdict.UNREACHABLE, Verdict.UNKNOWN)


def _counts(judged: JudgedLaunch) -> bool:
    """A damaged leftover of which nothing runs neither holds nor counts."""
    return judged.verdict is not Verdict.UNKNOWN or judged.view.alive


def most_telling(judged: Sequence[JudgedLaunch]) -> JudgedLaunch:
    """The newest, but what may be running out of sight or reach speaks first."""
    order = (Verdict.UNREACHABLE, Verdict.UNKNOWN)
    for verdict in order:
        for j in judged:
            if j.verdict is verdict and _counts(j):
                return j
    return next((j for j in judged if j.view.alive), judged[0])
