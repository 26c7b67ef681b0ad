"""`reconcile lease`: who may act, and taking over by a person who knows better."""

from __future__ import annotations

import click

from reconciler.cli.leasing import actor
from reconciler.cli.options import output_option, reason_option, repo_options
from reconciler.cli.output import show_json
from reconciler.cli.session import Session
from reconciler.cli.stopping import to_the_end
from reconciler.errors import Exit


@click.group(invoke_without_command=True)
@click.pass_context
def lease(ctx: click.Context) -> int:
    """Show who acts on the nodes (`show`, also without a word), or take over (`take`)."""
    if ctx.invoked_subcommand is None:
        return int(ctx.invoke(show))
    return 0


@lease.command()
@repo_options
@output_option("text", "json")
@click.pass_context
def show(ctx: click.Context, repo: str | None, ref: str | None, output: str) -> int:
    """The lease of every node: owner, epoch, time left, revision in force."""
    from reconciler.core.codec import to_json
    from reconciler.report.clean import printable
    from reconciler.report.status_text import table

    with Session.of(ctx, repo, ref) as session:
        desired = session.inventory()
        observed = session.look(desired)
    if output == "json":
        found = {
            name: to_json(look.answer.lease) if look.answer and look.answer.lease else None
            for name, look in sorted(observed.nodes.items())
        }
        show_json({"fleet": desired.fleet.id, "leases": found})
        return int(Exit.OK)
    rows = [("node", "owner", "epoch", "left", "in force")]
    for name, look in sorted(observed.nodes.items()):
        answer = look.answer
        if answer is None:
            rows.append((name, f"({look.error or 'no answer'})", "", "", ""))
        elif answer.lease is None:
            rows.append((name, answer.lease_error or "(never led)", "", "", ""))
        else:
            one = answer.lease
            owner, left = printable(one.owner), f"{one.remaining_s:.0f} s"
            if one.remaining_s <= 0:
                owner, left = f"(was {owner})" if owner else "", "free"
            rows.append((name, owner, str(one.epoch), left, one.revision[:10]))
    click.echo("\n".join(table(rows)))
    return int(Exit.OK)


@lease.command()
@reason_option
@repo_options
@click.pass_context
def take(ctx: click.Context, reason: str, repo: str | None, ref: str | None) -> int:
    """End every other owner's lease and say that this repository leads the fleet.

    For a lease file that is damaged, an owner that is gone for good, or a repository that was made
    anew. Who held it before is refused by the nodes from now on.
    """
    with Session.of(ctx, repo, ref) as session:
        desired = session.inventory()
        observed = session.look(desired)
        nodes = [name for name, look in sorted(observed.nodes.items()) if look.answer]
        with to_the_end():
            taken = session.pool.lease(
                desired,
                nodes,
                "take",
                reason=f"{reason} ({actor(session)})",
                root_commit=desired.revision.root_commit,
            )
            epochs = {name: a.lease.epoch for name, a in taken.items() if a.lease}
            if epochs:
                session.pool.lease(desired, sorted(epochs), "release", epochs=epochs)
    for name, answer in sorted(taken.items()):
        said = (
            f"taken, epoch {answer.epoch}" if answer.lease else f"{answer.reason}: {answer.message}"
        )
        click.echo(f"{name}: {said}")
    return int(Exit.OK if len(epochs) == len(observed.nodes) else Exit.PARTIAL)
