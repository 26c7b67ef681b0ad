"""A forecast of a revision: the first half of a pass, and from there in memory.

What is looked at and worked on is chosen exactly as a pass would choose it; nothing is acted on.
"""

from __future__ import annotations

from dataclasses import dataclass

from reconciler.loop.choosing import look, work_on
from reconciler.loop.head import Head, read_head
from reconciler.loop.seams import Edges
from reconciler.loop.trust import Trust
from reconciler.loop.values import Request
from reconciler.report.passreport import HeadError
from reconciler.simulate.forecast import Assumptions, Forecast, forecast


@dataclass(frozen=True)
class Foreseen:
    """A forecast, or why there is none."""

    head: Head
    forecast: Forecast | None = None
    error: HeadError | None = None
    notes: tuple[str, ...] = ()
    observed_at: str = ""


def foresee(edges: Edges, request: Request, given: Assumptions) -> Foreseen:
    """Plays head forward from one look at the nodes (or from the saved one that stands in)."""
    trust = Trust(edges.signers, edges.source, request.ref)
    head = read_head(edges.source, request.ref, worktree=request.worktree)
    if not request.worktree:
        head = trust.judge(head)
    if head.desired is None:
        return Foreseen(head, error=head.error)
    looking, observed = look(edges, request, head.desired)
    working = work_on(edges, head, observed, looking, trust, request)
    if working.desired is None or working.repairs_only:
        return Foreseen(head, error=working.error, notes=working.notes)
    if working.desired.nodes.keys() != looking.nodes.keys():
        observed = edges.pool.look(working.desired, remember=False)
    made = forecast(working.desired, observed, given)
    return Foreseen(head, made, working.error, working.notes, edges.now())
