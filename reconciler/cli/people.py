"""`retry` and `approve`: what only a person may say, kept on the nodes so that it outlives us."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

import click

from reconciler.cli.leasing import actor, store
from reconciler.cli.options import repo_options
from reconciler.cli.output import must_agree, say
from reconciler.cli.session import Session
from reconciler.errors import Exit, SettingsError
from reconciler.report.words import plural

if TYPE_CHECKING:
    from reconciler.core.changes import Plan
    from reconciler.core.observed import ApprovedChange, Observed
    from reconciler.core.verdict import Diff


@click.command()
@click.argument("placement")
@repo_options
@click.pass_context
def retry(ctx: click.Context, placement: str, repo: str | None, ref: str | None) -> int:
    """Forgive the failures of PLACEMENT: back-off and rejection end, the next pass tries anew."""
    from reconciler.core.diff import diff

    with Session.of(ctx, repo, ref) as session:
        desired = session.inventory()
        observed = session.look(desired)
        full = session.source.load(session.revision())
        if placement not in full.placements:
            raise _no_placement(placement, full.placements)
        forgiven = retries(diff(full, observed), placement)
        if not forgiven:
            say(f"Nothing of placement {placement} was ever launched: there is nothing to forgive.")
            return int(Exit.OK)
        kept = stored_retries(observed, desired.fleet.id)
        merged = {**kept, **{r: max(seq, kept.get(r, 0)) for r, seq in forgiven.items()}}
        reason = f"retry {placement} by {actor(session)}"
        nodes = store(session, desired, observed, reason, retries=merged)
    click.echo(
        f"Failures of {', '.join(sorted(forgiven))} are forgiven, on {plural(len(nodes), 'node')}."
        " The next pass tries anew."
    )
    return int(Exit.OK)


def _no_placement(name: str, known: Collection[str]) -> SettingsError:
    mine = name.rpartition("-")[0]
    if mine in known:
        hint = f"it is a replica: `reconcile retry {mine}` forgives all of its placement"
        return SettingsError(f"placement {name}", "does not exist", hint)
    there = ", ".join(sorted(known)) or "none"
    return SettingsError(f"placement {name}", "does not exist", f"there are: {there}")


def retries(diff: Diff, placement: str) -> dict[str, int]:
    """Replica → highest seq that was ever launched: all failures up to it are forgiven."""
    return {
        replica.replica: max(launch.view.seq for launch in replica.launches)
        for replica in diff.replicas
        if replica.placement == placement and replica.launches
    }


def stored_retries(observed: Observed, fleet: str) -> dict[str, int]:
    """What the leases hold already; the highest wins where nodes differ."""
    found: dict[str, int] = {}
    for look in observed.nodes.values():
        lease = look.answer.lease if look.answer else None
        for replica, seq in lease.retries.items() if lease and lease.fleet == fleet else ():
            found[replica] = max(seq, found.get(replica, 0))
    return found


@click.command()
@repo_options
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@click.pass_context
def approve(ctx: click.Context, repo: str | None, ref: str | None, yes: bool) -> int:
    """Let through exactly what a guard or `update: manual` holds now, at HEAD (or --ref).

    Shows the set and asks; --yes does not ask. Stores the set itself (replica, from → to or
    removed), so later sets that are part of it pass, and nothing more than that.
    """
    from reconciler.core.codec import to_json
    from reconciler.loop.passes import Request, run_pass
    from reconciler.loop.revisions import lease_facts
    from reconciler.report.plan_text import approval_text

    with Session.of(ctx, repo, ref) as session:
        report = run_pass(session.edges(), Request(ref=session.ref, act=False))
        if report.plan is None or report.head_error is not None:
            message = report.head_error.message if report.head_error else "no plan can be made"
            raise SettingsError("approve", message, "make the revision valid first")
        wanted = guarded(report.plan)
        if not wanted:
            click.echo("No guard holds anything: there is nothing to approve.")
            return int(Exit.OK)
        click.echo(approval_text(report.plan, wanted), nl=False)
        if not must_agree("Approve exactly these?", yes=yes):
            say("Nothing was approved.")
            return int(Exit.ERROR)
        desired = session.inventory()
        observed = session.look(desired)
        kept = lease_facts(observed, desired.fleet.id).approvals
        approvals = list(dict.fromkeys((*kept, *wanted)))
        reason = f"approve by {actor(session)}"
        nodes = store(session, desired, observed, reason, approvals=[to_json(a) for a in approvals])
    are = "is" if len(wanted) == 1 else "are"
    changes, on = plural(len(wanted), "change"), plural(len(nodes), "node")
    click.echo(f"{changes} {are} approved, on {on}.")
    return int(Exit.OK)


def guarded(plan: Plan) -> tuple[ApprovedChange, ...]:
    """The set that failed guards (and `update: manual`) hold."""
    from reconciler.core.guard import approvable

    return approvable(plan)
