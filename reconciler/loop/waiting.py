"""`--wait`: passes until everything is ready, nothing moves any more, or the time is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from reconciler.loop.leases import Book
from reconciler.loop.outcome import is_converged, is_moving
from reconciler.loop.passes import Request, run_pass
from reconciler.loop.seams import Edges
from reconciler.report.passreport import PassReport

PAUSE_S = 1.0
SETTLED = 3
"""Passes in a row without any movement after which waiting for more is of no use: what is held
then needs a person, a node or capacity."""


def run_until_settled(
    edges: Edges,
    request: Request,
    *,
    timeout_s: float,
    pause: Callable[[float], None],
    on_report: Callable[[PassReport], None],
) -> PassReport:
    """The last report. Its exit code says what came of it; leases are kept until the end."""
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
    while True:
        last = run_pass(edges, request)
        on_report(last)
        still = 0 if is_moving(last) else still + 1
        over = edges.clock_s() - began_s >= timeout_s
        if is_converged(last) or still >= SETTLED or over or request.cancelled():
            return last
        request = replace(request, expect="", on_plan=None, applied=last.revisions.applied)
        pause(PAUSE_S)
