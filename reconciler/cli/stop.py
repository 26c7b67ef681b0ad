"""`reconcile stop`: the way out for what is unknown and therefore never stopped by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from reconciler.cli.leasing import actor, leases
from reconciler.cli.logs import replica_of
from reconciler.cli.options import repo_options, seconds
from reconciler.cli.output import must_agree, say
from reconciler.cli.session import Session
from reconciler.errors import Exit, NodeError, SettingsError

if TYPE_CHECKING:
    from reconciler.core.observed import Observed


@click.command()
@click.argument("launch")
@click.option("--grace", callback=seconds, metavar="DURATION", help="Instead of the profile's.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
@repo_options
@click.pass_context
def stop(
    ctx: click.Context,
    launch: str,
    grace: float | None,
    yes: bool,
    repo: str | None,
    ref: str | None,
) -> int:
    """Stop one LAUNCH on all its nodes. What git still wants is started anew by the next pass."""
    with Session.of(ctx, repo, ref) as session:
        desired = session.inventory()
        observed = session.look(desired)
        nodes = sorted(
            name
            for name, look in observed.nodes.items()
            if look.answer and any(s.launch == launch for s in look.answer.shards)
        )
        if not nodes:
            raise _no_such(observed, launch)
        if not must_agree(f"Stop {launch} on {', '.join(nodes)}?", yes=yes):
            say("Nothing was stopped.")
            return int(Exit.ERROR)
        fields = {"grace_s": grace} if grace is not None else {}
        failed = 0
        fence = {"fleet": desired.fleet.id, "owner": session.owner.name}
        reason = f"stop {launch} by {actor(session)}"
        with leases(session, desired, nodes, reason) as epochs:
            for node in nodes:
                try:
                    said = session.pool.request(
                        desired,
                        node,
                        "stop",
                        launch=launch,
                        epoch=epochs.get(node, 0),
                        **fence,
                        **fields,
                    )
                    click.echo(f"{node}: {said.get('state', 'stopping')}")
                except NodeError as error:
                    failed += 1
                    click.echo(f"{node}: {error}")
    return int(Exit.PARTIAL if failed else Exit.OK)


def _no_such(observed: Observed, name: str) -> SettingsError:
    """Of a replica, with its launches that live: a restart of one that is wanted needs a name."""
    found = sorted(
        f"{shard.launch} on {node}"
        for node, look in observed.nodes.items()
        for shard in (look.answer.shards if look.answer else ())
        if shard.alive and name == replica_of(shard)
    )
    if found:
        return SettingsError(
            f"launch {name}", "is a replica", f"name one of its launches: {', '.join(found)}"
        )
    return SettingsError(
        f"launch {name}", "no node that answers has it", "`reconcile status` lists launches"
    )
