"""`--wait`: passes until everything is ready, nothing moves any more, or the time is over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from reconciler.core.verdict import Verdict
from reconciler.errors import Exit
from reconciler.loop.leases import Book
from reconciler.loop.outcome import DONE, is_converged, is_moving
from reconciler.loop.passes import Request, run_pass
from reconciler.loop.seams import Edges
from reconciler.report.passreport import PassReport, StepOutcome

PAUSE_S = 1.0
SETTLED = 3
"""Passes in a row without any movement after which waiting for more is of no use: what is held
then needs a person, a node or capacity."""
NAMED = 12
"""Replicas named in the closing line; of more, the rest is counted."""
HELD = 3
"""Holds told in it."""


def run_until_settled(
    edges: Edges,
    request: Request,
    *,
    timeout_s: float,
    pause: Callable[[float], None],
    on_report: Callable[[PassReport], None],
) -> PassReport:
    """The last report, with the steps of all passes. Its exit code says what came of it: 3 where
    something wanted is not ready, or not as wanted. Leases are kept until the end."""
    book = Book()
    request = replace(request, keep=book)
    try:
        return _passes(edges, request, timeout_s, pause, on_report)
    finally:
        book.release(edges.pool)


def _passes(
    edges: Edges,
    request: Request,
    timeout_s: float,
    pause: Callable[[float], None],
    on_report: Callable[[PassReport], None],
) -> PassReport:
    began_s = edges.clock_s()
    still = 0
    done: tuple[StepOutcome, ...] = ()
    while True:
        last = run_pass(edges, request)
        on_report(last)
        still = 0 if is_moving(last) else still + 1
        took_s = edges.clock_s() - began_s
        over = took_s >= timeout_s or request.cancelled()
        if is_converged(last) or still >= SETTLED or over:
            return _ended(replace(last, steps=(*done, *last.steps)), took_s, over=over)
        done += tuple(step for step in last.steps if step.result == DONE)
        request = replace(request, expect="", on_plan=None, applied=last.revisions.applied)
        pause(PAUSE_S)
        if request.cancelled():
            return _ended(replace(last, steps=done), edges.clock_s() - began_s, over=True)


def _ended(last: PassReport, took_s: float, *, over: bool) -> PassReport:
    """`last`, told as what it is where the wait ended before everything was ready."""
    late = unsettled_words(last)
    if is_converged(last):
        return last
    if not late:
        # All of it serves, and something keeps it from being as git says: a rejected profile.
        waits = _waits_for(last).removeprefix("; ")
        return replace(last, unsettled=f"all is ready, not all as wanted; {waits}" if waits else "")
    after = f"not ready after {took_s:.0f} s" if over else "not ready, and nothing moves any more"
    code = Exit.PARTIAL if last.exit_code == Exit.OK else last.exit_code
    return replace(last, exit_code=code, unsettled=f"{after}: {late}{_waits_for(last)}")


def unsettled_words(report: PassReport) -> str:
    """`www-1, www-2 still stale; db-0 starting`: wanted replicas that are not ready as wanted."""
    found: dict[str, list[str]] = {}
    for placement in report.placements:
        for replica in placement.replicas:
            calm = replica.ready and replica.verdict == Verdict.MATCHING
            if replica.wanted and not calm and replica.verdict != Verdict.SUSPENDED:
                ready = "not ready" if replica.verdict == Verdict.MATCHING else replica.verdict
                found.setdefault(ready, []).append(replica.replica)
            elif not replica.wanted:
                found.setdefault("not stopped", []).append(replica.replica)
    return "; ".join(f"{listed(names)} still {what}" for what, names in found.items())


def _waits_for(report: PassReport) -> str:
    """What holds them, each reason once: who waited an hour is not to look for it further up."""
    holds = report.plan.holds if report.plan else ()
    said = list(dict.fromkeys(f"{h.subject}: {h.reason.value}: {h.message}" for h in holds))
    more = f" (and {len(said) - HELD} more)" if len(said) > HELD else ""
    return f"; held: {'; '.join(said[:HELD])}{more}" if said else ""


def listed(names: Sequence[str]) -> str:
    """The first names, and how many there are beside them."""
    rest = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + rest
