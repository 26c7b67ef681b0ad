"""`reconcile journal`: what was done to a node, by whom, as the node itself wrote it down."""

from __future__ import annotations

import json

import click

from reconciler.cli.options import output_option, repo_options
from reconciler.cli.session import Session
from reconciler.errors import Exit, SettingsError


@click.command()
@click.argument("node")
@click.option("--lines", "-n", default=50, show_default=True, help="How many entries.")
@output_option("text", "json")
@repo_options
@click.pass_context
def journal(
    ctx: click.Context, node: str, lines: int, output: str, repo: str | None, ref: str | None
) -> int:
    """Show the journal of NODE, oldest first. It survives the loss of this machine."""
    from reconciler.report.clean import printable

    with Session.of(ctx, repo, ref) as session:
        desired = session.inventory()
        if node not in desired.nodes:
            known = ", ".join(sorted(desired.nodes)) or "none"
            raise SettingsError(f"node {node}", "does not exist", f"there are: {known}")
        entries = session.pool.request(desired, node, "journal", lines=lines).get("entries", [])
    for entry in entries:
        if output == "json":
            click.echo(json.dumps(entry))
            continue
        what = " ".join(str(entry[k]) for k in ("op", "action", "launch") if entry.get(k))
        who = f" by {entry['owner']} (epoch {entry.get('epoch', '?')})" if "owner" in entry else ""
        more = [str(entry[k]) for k in ("reason", "message") if entry.get(k)]
        text = f"{entry.get('time', '')} {what}: {entry.get('result', '')}{who}"
        click.echo(printable(": ".join([text, *more])))
    return int(Exit.OK)
