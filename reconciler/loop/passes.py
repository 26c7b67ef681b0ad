"""One pass: revision → desired → observed → diff → plan → apply → report.

A dry run is this line, returned from before the leases; nothing below asks which of the two it is.
No stage calls backwards, and what a stage found out is in its value. Exceptions of git and nodes
have become values before they reach this file.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from reconciler.core import remarks
from reconciler.core.changes import Plan, Reason
from reconciler.core.diff import diff
from reconciler.core.model import Desired
from reconciler.core.observed import Observed
from reconciler.core.plan import plan
from reconciler.errors import PlanIsStale
from reconciler.loop import leases, limits, outcome, publishing, revisions
from reconciler.loop.choosing import look, work_on
from reconciler.loop.head import Head, inventory, read_head
from reconciler.loop.seams import Edges
from reconciler.loop.telling import idle, nothing, report
from reconciler.loop.trust import Trust
from reconciler.loop.values import Decision, Request, Stopwatch
from reconciler.report.passreport import HeadError, PassReport, StepOutcome
from reconciler.report.words import SHORT_COMMIT, lead_words

if TYPE_CHECKING:
    from reconciler.nodes.apply import ApplyReport


def run_pass(edges: Edges, request: Request) -> PassReport:
    """One pass. Raises PlanIsStale where `expect` names another plan, else nothing on purpose."""
    watch = Stopwatch(edges.clock_s)
    with request.abrupt():
        trust = Trust(edges.signers, edges.source, request.ref)
        head = read_head(edges.source, request.ref, worktree=request.worktree)
        if request.act or not request.worktree:
            head = trust.judge(head)
        looking = head.desired or inventory(edges.source, head, request.ref, trust.vouches)
        watch.lap("revision")
        if looking is None:
            return nothing(edges, request, head, watch)
        looking, observed = look(edges, request, looking)
        watch.lap("look")
    working = work_on(edges, head, observed, looking, trust, request)
    watch.lap("revision")
    if working.desired is None:
        return idle(edges, request, head, working, looking, observed, watch)
    if working.desired.nodes.keys() != looking.nodes.keys() or working.repairs_only:
        with request.abrupt():
            observed = edges.pool.look(working.desired, remember=request.act)
        watch.lap("look")
    # Before the leases nobody is about to act: whose they are does not shape this plan.
    decision = decide(edges, working, replace(observed, owner=""))
    watch.lap("plan")
    if not request.act:
        decision = _asked(edges, request, decision)
        if request.worktree and (doubt := trust.doubt(head, working.in_force)):
            warned = replace(decision.plan, warnings=(doubt, *decision.plan.warnings))
            decision = replace(decision, plan=warned)
        watch.lap("check")
        return report(edges, request, head, working, decision, watch=watch)
    return act(edges, request, head, working, decision, watch)


def decide(edges: Edges, working: revisions.Working, observed: Observed) -> Decision:
    """Diff and plan; on a revision in force under a bad head, repairs only."""
    assert working.desired is not None
    desired = working.desired
    judged = diff(desired, observed)
    planned = plan(desired, observed, judged, edges.ids)
    if working.repairs_only:
        why = f"head is not in force ({working.error.reason if working.error else 'no head'})"
        planned = limits.only_repairs(planned, why, _reason(working.error))
        planned = replace(planned, warnings=(_repairs_words(working), *planned.warnings))
    elif working.turned:
        planned = replace(planned, warnings=(working.turned.message, *planned.warnings))
    return Decision(desired, observed, judged, planned)


def _repairs_words(working: revisions.Working) -> str:
    """A plan of another commit than the one that was asked for must say so by itself."""
    error = working.error
    ref, sha, commit = (error.revision if error else "").partition("sha1:")
    name = f"head {ref}{sha}{commit[:SHORT_COMMIT]}".rstrip()
    why = f"is refused ({error.reason})" if error and error.revision else "cannot be followed"
    force = working.in_force[:SHORT_COMMIT]
    return f"{name} {why}: only repairs are planned, by {force}, which is in force"


def _asked(edges: Edges, request: Request, decision: Decision) -> Decision:
    """With a hold for each start that its node would refuse; who acts asks as part of acting."""
    if edges.ask is None or not decision.plan.steps:
        return decision
    with request.abrupt():
        found = edges.ask(decision.plan, decision.desired, edges.pool)
    return replace(decision, plan=remarks.unfit(decision.plan, found))


def _reason(error: HeadError | None) -> Reason:
    known = {reason.value: reason for reason in Reason}
    return known.get(error.reason if error else "", Reason.FETCH_FAILED)


def act(
    edges: Edges,
    request: Request,
    head: Head,
    working: revisions.Working,
    decision: Decision,
    watch: Stopwatch,
) -> PassReport:
    """Take the leases, look and plan again under them, apply, and write down what is in force."""
    desired = decision.desired
    if not _has_to_act(edges, request, working, decision):
        _check_expected(request, decision.plan)
        if request.on_plan:
            request.on_plan(decision.plan)
        published = publishing.publish(edges, decision)
        watch.lap("publish")
        working = _with_leader(edges, working, decision)
        _remember(edges, request, working, decision)
        return report(edges, request, head, working, decision, watch=watch, published=published)
    held = take(edges, desired, decision.observed)
    watch.lap("lease")
    try:
        if held.fresh:
            observed = edges.pool.look(desired)
            watch.lap("look")
            if held.other:
                # By name alone: what the node said counts down, and would be news in each pass.
                name = leases.leader(observed, edges.owner, desired.fleet.id)
                held = replace(held, other=name or held.other)
            decision = decide(edges, working, observed)
            watch.lap("plan")
        _check_expected(request, decision.plan)
        reason, why = held.lacking
        allowed = limits.only_on(
            decision.plan,
            held.epochs.keys(),
            lead_words(held.other) if held.other else why,
            reason,
        )
        if held.other:
            allowed = limits.only_repairs(allowed, lead_words(held.other), Reason.LEASE_HELD)
        allowed = replace(allowed, holds=(*allowed.holds, *held.holds))
        decision = replace(decision, plan=allowed)
        if request.on_plan:
            request.on_plan(decision.plan)
        published = publishing.publish_before(edges, decision, held, request.cancelled)
        watch.lap("publish")
        steps = _apply(edges, request, decision, held)
        decision = replace(decision, plan=outcome.with_unfit(decision.plan, steps))
        watch.lap("apply")
        published = publishing.publish_after(edges, decision, steps, published)
        watch.lap("publish")
        kept = _write_down(edges, working, decision, held)
        watch.lap("lease")
        _remember(edges, request, kept, decision)
    finally:
        _let_go(edges, request, desired, held)
    return report(edges, request, head, kept, decision, steps, held.other, watch, published)


def _let_go(edges: Edges, request: Request, desired: Desired, held: leases.Held) -> None:
    """Keep the leases for the next pass, or give them back."""
    if request.keep is not None and not held.behind:
        request.keep.keep(desired, held)
        return
    if request.keep is not None:
        request.keep.forget()
    leases.ask(edges.pool, desired, held.epochs, "release")


def _with_leader(edges: Edges, working: revisions.Working, decision: Decision) -> revisions.Working:
    """A pass with nothing to do names who would be in its way, too."""
    name = leases.leader(decision.observed, edges.owner, decision.desired.fleet.id)
    return replace(working, notes=(*working.notes, lead_words(name))) if name else working


def take(edges: Edges, desired: Desired, observed: Observed) -> leases.Held:
    """The leases, as held already or asked for; nothing is asked of another repository's fleet."""
    foreign = foreign_root(desired, observed)
    if foreign:
        return leases.Held(other=foreign)
    held = leases.already_held(edges.pool, desired, observed, edges.owner)
    return held or leases.acquire(edges.pool, desired, leases.answering(observed))


def foreign_root(desired: Desired, observed: Observed) -> str:
    """One id with two first commits is two repositories: a person says which one leads."""
    ours = desired.revision.root_commit
    roots = revisions.lease_facts(observed, desired.fleet.id).roots - {ours}
    if not ours or not roots:
        return ""
    return (
        f"fleet {desired.fleet.id} is led from another repository, whose first commit is"
        f" {min(roots)[:10]} (ours: {ours[:10]}); `reconcile lease take` takes it over"
    )


def _has_to_act(
    edges: Edges, request: Request, working: revisions.Working, decision: Decision
) -> bool:
    if decision.plan.steps or request.keep is not None:
        return True
    keep = _keep(working, decision)
    return keep is not None and bool(leases.outdated(keep, decision.observed))


def _check_expected(request: Request, planned: Plan) -> None:
    if request.expect and not planned.plan_digest.startswith(request.expect):
        raise PlanIsStale(
            "plan",
            f"{request.expect} was reviewed, {planned.plan_digest} would be applied now",
            "look at the plan again: `reconcile --dry-run`",
        )


def _apply(
    edges: Edges, request: Request, decision: Decision, held: leases.Held
) -> tuple[StepOutcome, ...]:
    if not decision.plan.steps:
        return ()
    applied: ApplyReport = edges.apply(
        decision.plan,
        decision.desired,
        edges.pool,
        epochs=held.epochs,
        on_step=request.on_step,
        cancelled=request.cancelled,
    )
    return tuple(
        StepOutcome(r.kind, r.subject, r.node, r.result.value, r.code, r.message, r.took_s)
        for r in applied.results
    )


def _keep(working: revisions.Working, decision: Decision) -> leases.Keep | None:
    """What is to be in force after this pass; None: what is stored stays."""
    revision = decision.desired.revision
    if working.repairs_only or revision.dirty or not revision.commit:
        return None
    if not outcome.passed_guard(decision.plan):
        return None
    facts = revisions.lease_facts(decision.observed, decision.desired.fleet.id)
    planned = [change for guard in decision.plan.guards for change in guard.changes]
    return leases.Keep(
        revision=revision.commit,
        departed=revisions.still_departed(working.departed, decision.observed),
        approvals=revisions.pruned(facts.approvals, planned, decision.desired),
    )


def _write_down(
    edges: Edges, working: revisions.Working, decision: Decision, held: leases.Held
) -> revisions.Working:
    """The revision in force goes to every node that is held and does not name it yet."""
    keep = _keep(working, decision)
    if keep is None or held.other:
        return working
    stale = set(leases.outdated(keep, decision.observed))
    epochs = {node: epoch for node, epoch in held.epochs.items() if node in stale}
    said = leases.ask(edges.pool, decision.desired, epochs, "update", **keep.fields)
    taken = any(answer.lease for answer in said.values()) if epochs else bool(held.epochs)
    return replace(working, in_force=keep.revision) if taken else working


def _remember(
    edges: Edges, request: Request, working: revisions.Working, decision: Decision
) -> None:
    """Head is in force: where it names nothing one day, this says which nodes there are."""
    revision = decision.desired.revision
    if not working.repairs_only and not revision.dirty and working.in_force == revision.commit:
        edges.source.keep(request.ref, revision)


__all__ = ["Decision", "Request", "run_pass"]
