"""The pass' step between plan and apply: what is about to stop leaves the endpoints first.

A stop that is then not sent (the pass was cancelled, the node refused) brings its entry back in
the same pass: a daemon that ends here must not leave a ready replica without its requests.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from reconciler.core.changes import Plan, StopStep
from reconciler.loop import leases
from reconciler.loop.seams import Edges
from reconciler.loop.values import Decision
from reconciler.report.passreport import EndpointsStatus, StepOutcome

RENEW_SHARE = 6
"""A hook that took longer than this part of the leases' life has them renewed before apply."""

SENT = frozenset({"done", "lost"})
"""Results after which the node may have the stop."""


def publish(
    edges: Edges, decision: Decision, leaving: Collection[str] = ()
) -> EndpointsStatus | None:
    """What is seen, less what is `leaving`; None where nothing is published."""
    if edges.publisher is None:
        return None
    return edges.publisher.publish(
        decision.desired, decision.observed, decision.diff, leaving=leaving, now=edges.now()
    )


def publish_before(
    edges: Edges, decision: Decision, held: leases.Held, cancelled: Callable[[], bool]
) -> EndpointsStatus | None:
    """Before apply: without every launch that it is going to stop."""
    if edges.publisher is None:
        return None
    began_s = edges.clock_s()
    done = publish(edges, decision, () if cancelled() else stopping(decision.plan))
    if edges.clock_s() - began_s > decision.desired.fleet.lease_s / RENEW_SHARE:
        leases.ask(edges.pool, decision.desired, held.epochs, "renew")
    return done


def publish_after(
    edges: Edges,
    decision: Decision,
    steps: Iterable[StepOutcome],
    published: EndpointsStatus | None,
) -> EndpointsStatus | None:
    """After apply: again, with the launches whose stop reached no node."""
    leaving = stopping(decision.plan)
    sent = {s.subject for s in steps if s.kind == "stop" and s.result in SENT}
    if published is None or leaving <= sent:
        return published
    return publish(edges, decision, leaving & sent)


def stopping(plan: Plan) -> frozenset[str]:
    """The launches that the plan's steps stop now."""
    return frozenset(step.launch for step in plan.steps if isinstance(step, StopStep))
