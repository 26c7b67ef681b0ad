"""The last stage of a pass: everything that was found out, as one PassReport."""

from __future__ import annotations

from dataclasses import replace

from reconciler.core.model import Desired
from reconciler.core.observed import Observed
from reconciler.loop import leases, outcome, revisions
from reconciler.loop.head import Head
from reconciler.loop.seams import Edges
from reconciler.loop.values import Decision, Request, Stopwatch
from reconciler.report.passreport import EndpointsStatus, PassReport, Revisions, StepOutcome
from reconciler.report.status import node_statuses, placement_statuses


def report(
    edges: Edges,
    request: Request,
    head: Head,
    working: revisions.Working,
    decision: Decision,
    steps: tuple[StepOutcome, ...] = (),
    lease_held_by: str = "",
    watch: Stopwatch | None = None,
    published: EndpointsStatus | None = None,
) -> PassReport:
    """The last stage: everything that was found out, as one value."""
    problems = published.problems if published else ()
    made = PassReport(
        owner=edges.owner,
        observed_at=edges.now(),
        revisions=_revisions(head, working.in_force, request.applied),
        exit_code=outcome.exit_code(
            decision.plan,
            steps,
            head_error=working.error,
            lease_held_by=lease_held_by,
            unpublished=published is not None and bool(published.error or published.hook_error),
        ),
        working_on=decision.desired.revision,
        head_error=working.error,
        turned=working.turned,
        plan=decision.plan,
        placements=placement_statuses(
            decision.desired,
            decision.diff,
            decision.plan,
            acting=_is_acted_on(edges, request, decision),
        ),
        nodes=node_statuses(decision.desired, decision.observed),
        steps=steps,
        endpoints=published,
        lease_held_by=lease_held_by,
        notes=(*working.notes, *problems),
        durations_s=watch.took_s if watch else {},
        interval_s=decision.desired.fleet.interval_s,
    )
    if outcome.is_converged(made):
        applied = replace(made.revisions, applied=decision.desired.revision.commit)
        return replace(made, revisions=applied)
    return made


def _is_acted_on(edges: Edges, request: Request, decision: Decision) -> bool:
    """Whether anybody carries this plan out: this pass, or whoever leads the fleet."""
    return request.act or bool(
        leases.leader(decision.observed, edges.owner, decision.desired.fleet.id)
    )


def _revisions(head: Head, in_force: str, applied: str) -> Revisions:
    revision = head.revision
    return Revisions(
        head=revision.commit if revision else "",
        in_force=in_force,
        applied=applied,
        ref=revision.ref if revision else "",
    )


def nothing(edges: Edges, request: Request, head: Head, watch: Stopwatch) -> PassReport:
    """Not even the nodes are known: head cannot be read, and no older inventory validates."""
    return PassReport(
        owner=edges.owner,
        observed_at=edges.now(),
        revisions=_revisions(head, "", request.applied),
        exit_code=outcome.exit_code(None, ()),
        head_error=head.error,
        notes=(
            "the working tree does not validate: nothing is planned"
            if request.worktree
            else "no revision tells which nodes there are: nothing is done",
        ),
        durations_s=watch.took_s,
    )


def idle(
    edges: Edges,
    request: Request,
    head: Head,
    working: revisions.Working,
    looking: Desired,
    observed: Observed,
    watch: Stopwatch,
) -> PassReport:
    """The nodes were seen, and there is no revision to act on."""
    return PassReport(
        owner=edges.owner,
        observed_at=edges.now(),
        revisions=_revisions(head, working.in_force, request.applied),
        exit_code=outcome.exit_code(None, ()),
        head_error=working.error,
        nodes=node_statuses(looking, observed),
        notes=working.notes,
        durations_s=watch.took_s,
    )
